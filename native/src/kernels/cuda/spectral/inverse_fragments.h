// The inverse of a basis as sealing multiplies it: B fragments of mma.m16n8k32 on bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/host_device.h"
#include "codecs/basis.h"

namespace kvasir::cuda {

// Steps of 32 channels of a row, as many as one of the kernels has: 2, 3, 4 or 8.
KVASIR_HOST_DEVICE constexpr int inverse_steps(int head_dim) {
  return head_dim <= 64 ? 2 : head_dim <= 96 ? 3 : head_dim <= 128 ? 4 : 8;
}

// Words of a kv head: [head_dim / 8][steps][32 lanes][4]. Lane (g, h) has of coefficient g of eight the numbers of
// channels 4 h .. 4 h + 3, and of those 16 on, as bytes: both words of high digits, then both of low ones. A number is
// 256 * high + low, both signed. Channels beyond the last are 0.
KVASIR_HOST_DEVICE constexpr size_t inverse_words(int head_dim) {
  return static_cast<size_t>(head_dim / 8) * static_cast<size_t>(inverse_steps(head_dim)) * 128;
}

// Of all kv heads.
std::vector<uint32_t> inverse_fragments(const Basis& basis);

}  // namespace kvasir::cuda
