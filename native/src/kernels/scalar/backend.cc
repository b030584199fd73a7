#include "kernels/codebook_inl.h"
#include "kernels/match_inl.h"
#include "kernels/scalar/scalar.h"

namespace kvasir::scalar {
namespace {

constexpr const CodecKernels* kCodecs[] = {
#define CODEC(name) &name##_kernels,
#include "codecs/codecs.def"
#undef CODEC
};

bool available() { return true; }

}  // namespace

const Backend backend = {"scalar",       "plain C++, on every CPU", available,          &row_kernels, kCodecs,
                         &kMatchKernels, &matrix_kernels,           &codebook::kKernels};

}  // namespace kvasir::scalar
