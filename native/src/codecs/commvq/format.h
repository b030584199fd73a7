// Page layout of the commvq codec. A part holds all kv heads of the layer, on both sides.
//
//   keys     uint16 norm[kPageTokens], then the codes of each kv head: for each stage kPageTokens codes of
//            2 * index_bits bits, one after the other from the lowest bit of the first byte on
//   values   uint16 gain[kPageTokens], then a code plane of one bit: x the tokens, y the rows of the codebook
//
// Norms and gains are float16. Keys are stored before RoPE.
#pragma once

#include <cstddef>

#include "codecs/code_plane.h"
#include "codecs/page_format.h"

namespace kvasir::commvq {

constexpr size_t kScaleBytes = 2 * kPageTokens;
constexpr int kMaxStages = 64;

struct KeyPage {
  int kv_heads;
  int stages;
  int index_bits;  // of a and of b: 4, 5 or 6

  KVASIR_HOST_DEVICE size_t stage_bytes() const { return static_cast<size_t>(kPageTokens) * 2 * index_bits / 8; }
  KVASIR_HOST_DEVICE size_t head_bytes() const { return stages * stage_bytes(); }
  KVASIR_HOST_DEVICE size_t head_offset(int kv_head) const { return kScaleBytes + kv_head * head_bytes(); }
  KVASIR_HOST_DEVICE size_t bytes() const { return (head_offset(kv_heads) + 63) / 64 * 64; }
};

struct ValuePage {
  int codes;  // a multiple of 16

  KVASIR_HOST_DEVICE CodePlane plane() const { return {1, 0, kPageTokens, codes}; }
  KVASIR_HOST_DEVICE size_t bytes() const { return kScaleBytes + plane().bytes(); }
};

}  // namespace kvasir::commvq
