// CacheEstimate: what a sequence would take of a cache, worked out by the code that would take it, without memory and
// without rows.
//
//   std::unique_ptr<CacheEstimate> estimate(CacheEstimate::create(*config, 32768, 1));
//   estimate->bytes(kAllLayers);                                      // of one sequence; others take as much again
//
// Equal to what CacheStats says of such a sequence that shares nothing, to the byte, where budgets do not press on it.
// For codecs whose pages vary in size by what is in them ("tiered") pages are counted at their largest; on a device
// such pages have another layout, of which this knows nothing.
#pragma once

#include <cstdint>
#include <memory>

#include "kvasir/config.h"

namespace kvasir {

class CacheEstimate {
 public:
  // A sequence of `prompt` tokens, appended in one call, and of `decoded` tokens after them, one by one; queries have
  // been seen where a codec goes by them. Of the config, budgets, backend and threads do not matter. Throws
  // kInvalidArgument as Cache::create does, and for a negative number of tokens.
  static CacheEstimate* create(const CacheConfig& config, int64_t prompt, int64_t decoded);
  static void destroy(CacheEstimate* estimate);
  ~CacheEstimate();
  CacheEstimate(const CacheEstimate&) = delete;
  CacheEstimate& operator=(const CacheEstimate&) = delete;

  // layer: a layer or kAllLayers. Kinds are those of CacheStats.
  int64_t bytes(int layer) const;  // pages, window and tables
  int64_t pages(int layer) const;
  int64_t page_bytes(int layer) const;
  int64_t window_bytes(int layer) const;
  int64_t table_bytes(int layer) const;
  int64_t codebook_bytes(int layer) const;
  // Elements that the sequence sees.
  int64_t elements(int layer) const;
  // Of the bytes, what remains where pages have given up all the precision that they can, or where rows are such that
  // pages that vary are at their smallest.
  int64_t least_bytes(int layer) const;

  struct Impl;

 private:
  explicit CacheEstimate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
