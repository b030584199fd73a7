// The inside of a CacheStats.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cache/memory.h"
#include "kvasir/cache.h"

namespace kvasir {

struct LayerStats {
  int64_t pages = 0;
  int64_t page_bytes = 0;
  int64_t window_bytes = 0;
  int64_t table_bytes = 0;
  int64_t page_elements = 0;                 // in the sealed pages, shared ones once
  int64_t elements = 0;                      // over all sequences, held ones
  std::map<const void*, int64_t> codebooks;  // bytes, by what tells codebooks apart
  // By side; what follows the bits is for codecs with a side table.
  int64_t parts[2] = {};
  int64_t part_bytes[2] = {};
  int64_t channels[2][17] = {};  // by the width of their codes, over the parts
  int64_t parts_without_table[2] = {};
  int64_t labelled_tokens[2] = {};
  Memory::Shrinks shrinks;
  std::vector<Memory::Step> steps;  // of one layer; a sum has none

  void add(const LayerStats& other);
  int64_t bytes() const { return page_bytes + window_bytes + table_bytes; }
  int64_t codebook_bytes() const;
};

struct CacheStats::Impl {
  int64_t sequences = 0;
  int64_t budget = 0;
  int64_t bytes = 0;
  int64_t peak_bytes = 0;
  std::vector<LayerStats> layers;
  std::string backend;
  int64_t tiles = 0;
  int64_t fallback_tiles = 0;

  // One layer, or the sum of all.
  LayerStats at(int layer) const;
};

}  // namespace kvasir
