// The queries that a layer of a sequence saw (engine/query_sums.h), as the cache keeps them: memory of the engine's.
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
  // Pages were sealed: counting begins anew.
  void settle(const LayerPlan& plan, Engine& engine);

  QueryMeans copy(Engine& engine, Block block) const;

  // As it is saved (QuerySums): all of the memory, and the same again.
  std::vector<uint8_t> read(Engine& engine) const;
  void restore(Engine& engine, Block block, const std::vector<uint8_t>& bytes);

 private:
  Block block_;
};

}  // namespace kvasir
