// The queries that a layer of a sequence saw (engine/query_sums.h), as the cache keeps them: memory of the engine's,
// and how many queries stand in it.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/pool.h"
#include "engine/engine.h"
#include "engine/query_sums.h"

namespace kvasir {

class QueryMeans {
 public:
  // Before anything else: gives it memory, QuerySums::bytes of it.
  void begin(const LayerPlan& plan, Engine& engine, Block block);
  explicit operator bool() const { return static_cast<bool>(block_); }
  int64_t bytes() const { return block_.bytes(); }

  uint8_t* sums() const { return block_.data(); }
  // Queries of so many tokens were added to the sums.
  void count(const LayerPlan& plan, int64_t tokens) { count_ += tokens * plan.attention.group(); }

  SeenQueries seen() const { return {block_.data(), count_}; }
  // Pages were sealed: counting begins anew.
  void settle(const LayerPlan& plan, Engine& engine);

  QueryMeans copy(Engine& engine, Block block) const;

  // As it is saved: the memory, and how many queries stand in it.
  std::vector<uint8_t> read(Engine& engine) const;
  int64_t count() const { return count_; }
  // The same again. `bytes` has as many as the block.
  void restore(Engine& engine, Block block, const std::vector<uint8_t>& bytes, int64_t count);

 private:
  Block block_;
  int64_t count_ = 0;  // queries of a kv head in the sums
};

}  // namespace kvasir
