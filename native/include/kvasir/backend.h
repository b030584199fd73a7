// Backends: where kernels run. Listed best first; the last, "scalar", is always available. Beside "cuda" they are
// levels of the CPU: "amx", "avx512" and "avx2" on x86-64, "neon_i8mm", "neon_dotprod" and "neon" (which needs neither
// extension) on AArch64.
//
// The default is the first available one; the environment variable KVASIR_BACKEND names another (read when a cache is
// created), and CacheConfig::set_backend overrides both for one cache. A name that this machine cannot run is an error,
// never a silent replacement.
#pragma once

namespace kvasir {

int backend_count();
const char* backend_name(int backend);     // "avx512", "avx2", "neon", "scalar", ...
const char* backend_summary(int backend);  // what it needs and what it does
bool backend_available(int backend);
const char* backend_obstacle(int backend);  // why it is not available; empty where it is

// The backend that "auto" means here. Throws kUnavailable if KVASIR_BACKEND names one that cannot run.
const char* default_backend();

// CPU work runs on one pool of threads, callers included, but for caches with threads of their own
// (CacheConfig::set_threads). Default: the number of cores.
// May be changed at any time; calls under way finish on the threads they have. 1..1024.
void set_threads(int threads);
int threads();

// "1.2.3"
const char* version();

}  // namespace kvasir
