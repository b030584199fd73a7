// The ladder of backends, best first. KVASIR_LEVELS comes from the build: LEVEL(avx512) LEVEL(avx2), ...
#include <cstdlib>
#include <string>

#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "kernels/scalar/scalar.h"
#include "kvasir/backend.h"
#include "kvasir/codec.h"
#include "kvasir/error.h"

namespace kvasir {

#define LEVEL(level)            \
  namespace level {             \
  extern const Backend backend; \
  }
KVASIR_LEVELS
#undef LEVEL

namespace {

constexpr const Backend* kBackends[] = {
#define LEVEL(level) &level::backend,
    KVASIR_LEVELS
#undef LEVEL
        & scalar::backend,
};
constexpr int kBackendCount = sizeof kBackends / sizeof *kBackends;

int find_backend(const std::string& name) {
  std::string names;
  for (int i = 0; i < kBackendCount; ++i) {
    if (name == kBackends[i]->name) return i;
    names += (i ? ", " : "") + std::string(kBackends[i]->name);
  }
  throw Error(ErrorCode::kInvalidArgument, "no backend '" + name + "'; this build has " + names);
}

int require_backend(const std::string& name) {
  const int index = find_backend(name);
  if (!kBackends[index]->available()) {
    throw Error(ErrorCode::kUnavailable,
                "backend " + name + " cannot run here; it is: " + std::string(kBackends[index]->summary));
  }
  return index;
}

int best_backend() {
  int index = 0;
  while (!kBackends[index]->available()) ++index;
  return index;
}

// The first table of its kind from `backend` on down.
template <class Kernels>
const Kernels& resolve(int backend, const Kernels* Backend::*table) {
  while (!(kBackends[backend]->*table) || !kBackends[backend]->available()) ++backend;
  return *(kBackends[backend]->*table);
}

}  // namespace

int backend_list_size() { return kBackendCount; }

const Backend& backend_at(int index) {
  if (index < 0 || index >= kBackendCount) {
    throw Error(ErrorCode::kInvalidArgument,
                "backend " + std::to_string(index) + " of " + std::to_string(kBackendCount));
  }
  return *kBackends[index];
}

const char* wanted_backend() {
  const char* wanted = std::getenv(kBackendVariable);
  return wanted && *wanted ? wanted : "auto";
}

int backend_index(const char* name) {
  if (std::string(name) != "auto") return require_backend(name);
  const std::string wanted = wanted_backend();
  for (int i = 0; i < kBackendCount; ++i) {
    if (wanted == kBackends[i]->name && kBackends[i]->available()) return i;
  }
  return best_backend();
}

ResolvedCodec resolve_codec(int backend, int codec) {
  ResolvedCodec resolved = {};
  for (int i = backend; i < kBackendCount; ++i) {
    const CodecKernels* kernels = kBackends[i]->codecs[codec];
    if (!kernels || !kBackends[i]->available()) continue;
    CodecKernels& known = resolved.kernels;
    if (i > backend && ((!known.key_scores && kernels->key_scores) || (!known.value_sum && kernels->value_sum))) {
      resolved.fallback = true;
    }
    if (!known.encode) known.encode = kernels->encode;
    if (!known.decode) known.decode = kernels->decode;
    if (!known.key_scores) known.key_scores = kernels->key_scores;
    if (!known.value_sum) known.value_sum = kernels->value_sum;
    if (!known.begin_keys) known.begin_keys = kernels->begin_keys;
    if (!known.end_values) known.end_values = kernels->end_values;
    if (!known.shrink) known.shrink = kernels->shrink;
    if (!known.lay_out) known.lay_out = kernels->lay_out;
  }
  return resolved;
}

const MatchKernels& resolve_match(int backend) { return resolve(backend, &Backend::match); }
const MatrixKernels& resolve_matrix(int backend) { return resolve(backend, &Backend::matrix); }
const CodebookKernels& resolve_codebooks(int backend) { return resolve(backend, &Backend::codebooks); }

void set_threads(int threads) {
  if (threads < 1 || threads > 1024) {
    throw Error(ErrorCode::kInvalidArgument, "threads must be 1..1024, not " + std::to_string(threads));
  }
  ThreadPool::shared().set_threads(threads);
}

int threads() { return ThreadPool::shared().threads(); }

const char* version() { return KVASIR_VERSION; }

}  // namespace kvasir
