// What kernels need of CommVQ's codebooks, in the order in which they need it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codecs/commvq/format.h"
#include "codecs/page_format.h"
#include "kvasir/rope.h"

namespace kvasir::commvq {

// Lanes of a key that are decoded together: the tables of all stages for them fit the smallest cache.
constexpr int kChunk = 16;

class KeyModel : public PageModel {
 public:
  KeyPage page;
  int head_dim;
  int entries;
  RopePairs pairs;
  // [kv_heads][head_dim / kChunk][stages][entries][kChunk] of planar rows z, float16. A key is the sum over stages of
  // z_a and, times i, that of z_b.
  const uint16_t* tables;

  // The tables of a chunk, stage by stage.
  const uint16_t* chunk_tables(int kv_head, int chunk) const {
    const size_t number = static_cast<size_t>(kv_head) * (head_dim / kChunk) + chunk;
    return tables + number * page.stages * entries * kChunk;
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
