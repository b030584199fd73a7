#include <cstring>

#include "codecs/progressive/formula.h"
#include "codecs/uniform/format.h"
#include "kernels/forward_inl.h"
#include "kernels/scalar/scalar.h"
#include "kernels/scalar/uniform_page.h"

namespace kvasir::scalar {
namespace {

using progressive::Shift;

void encode(const PageFormat& format, const float* rows, uint8_t* page) {
  const auto code_of = [&](float x, float lo, float range) {
    const auto code = static_cast<uint32_t>(progressive::code_of(x, lo, range, format.grid));
    return static_cast<int>(progressive::narrow_to(code, format.bits, format.grid));
  };
  encode_page(format, rows, code_of, page);
}

void shrink(const PageFormat& from, const PageFormat& to, const uint8_t* page, uint8_t* out) {
  const uniform::Layout wide = uniform::layout_of(from);
  const uniform::Layout small = uniform::layout_of(to);
  const Shift shift = progressive::shift_of(to);
  uint8_t shrunk[sizeof(float) * kPageTokens * kMaxHeadDim] = {};
  std::memcpy(shrunk, page, wide.plane_offset[0]);
  for (int g = 0; shift == Shift::kModified && g < wide.groups; ++g) {
    for (int e = 0; e < wide.entries; ++e) {
      uint16_t lo, range;
      std::memcpy(&lo, page + wide.lo_offset(g) + 2 * e, 2);
      std::memcpy(&range, page + wide.range_offset(g) + 2 * e, 2);
      progressive::modify_parameters(to.bits, &lo, &range);
      std::memcpy(shrunk + wide.lo_offset(g) + 2 * e, &lo, 2);
      std::memcpy(shrunk + wide.range_offset(g) + 2 * e, &range, 2);
    }
  }
  for (int x = 0; x < wide.x_size; ++x) {
    for (int y = 0; y < wide.y_size; ++y) {
      const auto code = static_cast<uint32_t>(wide.get(page, x, y));
      const uint32_t narrow = shift == Shift::kEquivalent ? progressive::narrow(code, to.bits) : code >> to.bits;
      small.put(shrunk, x, y, static_cast<int>(narrow));
    }
  }
  std::memcpy(out, shrunk, small.bytes);
}

}  // namespace

using Uniform = Forward<uniform_kernels>;
const CodecKernels progressive_kernels = {
    encode, Uniform::decode, Uniform::key_scores, Uniform::value_sum, nullptr, nullptr, shrink,
};

}  // namespace kvasir::scalar
