// AVX-512's backend with products of many rows by AMX. All that is not a product with weights is AVX-512's own.
#include <sys/syscall.h>
#include <unistd.h>

#include "base/processor.h"
#include "kernels/kernels.h"

namespace kvasir {
namespace avx512 {

extern const RowKernels row_kernels;
extern const MatchKernels match_kernels;
extern const CodebookKernels codebook_kernels;
extern const Backend backend;
#define CODEC(name) extern const CodecKernels name##_kernels;
#include "codecs/codecs.def"
#undef CODEC

}  // namespace avx512

namespace amx {

extern const MatrixKernels matrix_kernels;

namespace {

constexpr const CodecKernels* kCodecs[] = {
#define CODEC(name) &avx512::name##_kernels,
#include "codecs/codecs.def"
#undef CODEC
};

// Linux gives a process the memory of tiles when it asks, once, for all its threads.
bool tiles_are_granted() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Runs on machines without this level: nothing here may be worth a vector instruction.
bool available() {
  static const bool granted = processor::has_tiles() && avx512::backend.available() && tiles_are_granted();
  return granted;
}

}  // namespace

extern const Backend backend;
const Backend backend = {"amx",           "x86-64 with AVX-512 and AMX: tile products for models, else as avx512",
                         available,       &avx512::row_kernels,
                         kCodecs,         &avx512::match_kernels,
                         &matrix_kernels, &avx512::codebook_kernels};

}  // namespace amx
}  // namespace kvasir
