// What kernels need of CommVQ's codebooks, in the order in which they need it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codecs/commvq/format.h"
#include "codecs/page_format.h"
#include "kvasir/rope.h"

namespace kvasir::commvq {

// Lanes of a key that are decoded together: the tables of one stage for them, and the sums of all tokens of a page, fit
// the smallest cache.
constexpr int kChunk = 16;

class KeyModel : public PageModel {
 public:
  KeyPage page;
  int head_dim;
  int entries;
  RopePairs pairs;
  // [kv_heads][head_dim / kChunk][stages][2 * entries][kChunk] of planar rows: z, then i z. A key is the sum over
  // stages of z_a and i z_b.
  const float* tables;

  const float* table(int kv_head, int chunk, int stage) const {
    const size_t number = (static_cast<size_t>(kv_head) * (head_dim / kChunk) + chunk) * page.stages + stage;
    return tables + number * 2 * entries * kChunk;
  }
};

class ValueModel : public PageModel {
 public:
  ValuePage page;
  int kv_heads;
  int head_dim;
  // [kv_heads][codes][head_dim], float16.
  const uint16_t* tables;

  const uint16_t* row(int kv_head, int code) const {
    return tables + (static_cast<size_t>(kv_head) * page.codes + code) * head_dim;
  }
};

}  // namespace kvasir::commvq
