#include <cstring>

#include "codecs/progressive/formula.h"
#include "codecs/uniform/format.h"
#include "kernels/forward_inl.h"
#include "kernels/scalar/scalar.h"
#include "kernels/scalar/uniform_page.h"

namespace kvasir::scalar {
namespace {

using progressive::Shift;

// modify(&lo, &range) for the parameters of every group.
template <class Modify>
void modify_page(const uniform::Layout& layout, uint8_t* page, const Modify& modify) {
  for (int g = 0; g < layout.groups; ++g) {
    for (int e = 0; e < layout.entries; ++e) {
      uint16_t lo, range;
      std::memcpy(&lo, page + layout.lo_offset(g) + 2 * e, 2);
      std::memcpy(&range, page + layout.range_offset(g) + 2 * e, 2);
      modify(&lo, &range);
      std::memcpy(page + layout.lo_offset(g) + 2 * e, &lo, 2);
      std::memcpy(page + layout.range_offset(g) + 2 * e, &range, 2);
    }
  }
}

void encode(const PageFormat& format, const float* rows, uint8_t* page) {
  const Shift shift = progressive::shift_of(format);
  const auto code_of = [&](float x, float lo, float range) {
    const auto code = static_cast<uint32_t>(progressive::code_of(x, lo, range, format.grid));
    return static_cast<int>(progressive::narrow_to(code, format.bits, shift));
  };
  encode_page(format, rows, code_of, page);
  if (shift != Shift::kModified) return;
  modify_page(uniform::layout_of(format), page,
              [&](uint16_t* lo, uint16_t* range) { progressive::modify_parameters_to(format.bits, lo, range); });
}

void shrink(const PageFormat& from, const PageFormat& to, const uint8_t* page, uint8_t* out) {
  const uniform::Layout wide = uniform::layout_of(from);
  const uniform::Layout small = uniform::layout_of(to);
  const Shift shift = progressive::shift_of(to);
  uint8_t shrunk[sizeof(float) * kPageTokens * kMaxHeadDim] = {};
  std::memcpy(shrunk, page, wide.plane_offset[0]);
  if (shift == Shift::kModified) {
    modify_page(wide, shrunk,
                [&](uint16_t* lo, uint16_t* range) { progressive::modify_parameters(to.bits, lo, range); });
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
