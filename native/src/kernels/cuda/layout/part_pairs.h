// Parts of a head block beside the canonical bytes of their side: where each element and parameter of one stands in the
// other. What pack.cc does on the host and pages/repack.cu on the device.
#pragma once

#include <cstdint>

#include "codecs/uniform/format.h"
#include "kernels/cuda/layout/fragments.h"

namespace kvasir::cuda {

struct PartPair {
  PartLayout device;
  Side side;
  int head_dim;
  int first_x, first_y;  // of the part in the side's matrix
  int group;             // of the canonical parameters

  // The canonical layout of the side, for parts of codes.
  KVASIR_HOST_DEVICE uniform::Layout canonical() const {
    PageFormat format;
    format.side = side;
    format.head_dim = head_dim;
    format.bits = device.element_bits();
    const bool by_channel = side == Side::kKeys && !device.y_parameters;
    format.axis = by_channel ? Axis::kChannel : Axis::kToken;
    format.group = by_channel ? kPageTokens : head_dim < kValueSpan ? head_dim : kValueSpan;
    return uniform::layout_of(format);
  }

  // Of a float16 element, from the first byte of the side.
  KVASIR_HOST_DEVICE size_t canonical16(int x, int y) const {
    const int token = side == Side::kKeys ? y : x;
    const int channel = side == Side::kKeys ? first_x + x : first_y + y;
    return 2 * (static_cast<size_t>(token) * head_dim + channel);
  }
};

KVASIR_HOST_DEVICE static inline PartPair key_pair(const HeadLayout& layout, int part) {
  return {layout.key(), Side::kKeys, layout.head_dim, part * kValueSpan, 0, part};
}

KVASIR_HOST_DEVICE static inline PartPair value_pair(const HeadLayout& layout, int part) {
  return {layout.value(), Side::kValues, layout.head_dim, 0, part * kValueSpan, part};
}

}  // namespace kvasir::cuda
