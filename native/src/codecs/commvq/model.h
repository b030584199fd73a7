// What kernels need of CommVQ's codebooks, in the order in which they need it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "codecs/commvq/format.h"
#include "codecs/page_format.h"

namespace kvasir::commvq {

// Channels that stand together in the float16 tables.
constexpr int kChunk = 16;

// Entries that can be looked up as bytes: so many units at most, which are a step times 2^0 .. 2^kMostLevel.
constexpr int kMostByte = 127;
constexpr int kMostLevel = 6;

// Key tables as whole numbers, so that a key costs one 16-bit addition for each 32 channels and code.
//
// Entry z of RoPE pair j is stored as round(z / unit[j]), real and imaginary part side by side. `run` stages at a time
// add up to what 16 bits hold, whatever their codes are; the sums of runs are added with 32 bits.
struct FixedTables {
  static constexpr int kPairs = 16;  // in a row: 64 bytes

  int chunks;  // of kPairs pairs, the last one padded with 0
  int run;
  const int16_t* rows;  // [kv_heads][chunks][stages][entries][kPairs][2]
  const float* units;   // [kv_heads][chunks][kPairs]; 0 for padding
};

// Codebooks find codes in ways of their own, and decode by them.
class PageBook : public PageModel {
 public:
  // rows: [kPageTokens][heads * head_dim].
  virtual void encode(const float* rows, uint8_t* page) const = 0;
  virtual void decode(const uint8_t* page, float* rows) const = 0;
};

class KeyModel : public PageBook {
 public:
  KeyPage page;
  int head_dim;
  int entries;
  RopePairs pairs;
  // [kv_heads][head_dim / kChunk][stages][entries][kChunk] of planar rows z, float16. A key is the sum over stages of
  // z_a and, times i, that of z_b.
  const uint16_t* tables;
  FixedTables fixed;
  int refinements = 0;  // as KeyCodebook::encode takes them

  // The tables of a chunk, stage by stage.
  const uint16_t* chunk_tables(int kv_head, int chunk) const {
    const size_t number = static_cast<size_t>(kv_head) * (head_dim / kChunk) + chunk;
    return tables + number * page.stages * entries * kChunk;
  }
  const int16_t* fixed_rows(int kv_head, int chunk) const {
    const size_t number = static_cast<size_t>(kv_head) * fixed.chunks + chunk;
    return fixed.rows + number * page.stages * entries * (2 * FixedTables::kPairs);
  }
};

// The weights of a ValueEncoder, as it takes them.
struct ValueNetwork {
  int hidden;
  const float *scale, *norm_weight, *norm_bias;  // [width]
  const float *first_weight, *first_bias;        // [hidden][width], [hidden]
  const float *second_weight, *second_bias;      // [2 * codes][hidden], [2 * codes]
};

class ValueModel : public PageBook {
 public:
  ValuePage page;
  int kv_heads;
  int head_dim;
  // [kv_heads][codes][head_dim], float16.
  const uint16_t* tables;
  // How encoding finds bits: by the thresholds ([codes]), or by the network where there is one; then by flips of a
  // token, at most so many.
  const float* thresholds = nullptr;
  std::optional<ValueNetwork> network;
  int flips = 0;

  const uint16_t* row(int kv_head, int code) const {
    return tables + (static_cast<size_t>(kv_head) * page.codes + code) * head_dim;
  }
};

}  // namespace kvasir::commvq
