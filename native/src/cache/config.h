// The inside of a CacheConfig: plain data, read by the cache when it is built.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "codecs/codec.h"
#include "kvasir/config.h"

namespace kvasir {

struct SideConfig {
  std::string codec = "f16";
  int bits = 16;
  CodecOptions options;
};

struct LayerConfig {
  int source = -1;  // the layer whose keys and values it attends to; -1: itself
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int row_dim = 0, value_dim = 0;  // where keys and values share a row, which heads are slices of; else 0
  int64_t sliding_window = 0;
  float softmax_scale = 0.0f;      // 0: 1/sqrt(head_dim)
  float soft_cap = 0.0f;           // 0: none
  std::vector<float> sink_logits;  // by query head; empty: none
  int64_t budget = 0;
  SideConfig sides[2];
  std::vector<float> key_scaling;  // empty: none
  RopePairs rope_pairs = RopePairs::kHalves;
  std::vector<double> rope;  // empty: keys come after it
  double rope_magnitude = 1.0;
  Codebooks codebooks;
};

struct CacheConfig::Impl {
  std::vector<LayerConfig> layers;
  int window = 0;
  int sinks = 0;
  int64_t budget = 0;
  std::string backend = "auto";
  Precision precision = Precision::kExact;
  int threads = 0;  // 0: those of the library
  ShrinkPolicy shrink_policy = ShrinkPolicy::kOldest;
  std::string model;  // a name of its content, in hexadecimal; empty: unknown
};

}  // namespace kvasir
