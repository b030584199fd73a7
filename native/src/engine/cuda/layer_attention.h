// Attention of one layer on the device: fused kernels of its family where they take the request, else
// row_attention.h, or shared_row_attention.h where keys and values share a row.
//
// One call at a time: families keep workspaces that belong to one launch after the other.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cuda/families/family.h"
#include "engine/cuda/fused_group.h"

namespace kvasir::cuda {

class LayerAttention {
 public:
  explicit LayerAttention(const DeviceLayer& layer) : layer_(layer) {}

  // On the engine's stream. Sequences that follow each other and go the same way do so together.
  Engine::Tiles run(const AttentionRequest& request, const QueryMemory& memory, uint64_t epoch);
  // Into a graph, on the caller's stream.
  Engine::Tiles capture(const AttentionRequest& request, const QueryMemory& memory, uint64_t epoch,
                        cudaStream_t stream);

 private:
  int64_t bring_up_to_date(const AttentionRequest& request, uint64_t epoch);
  // Where the layer scales its keys: queries that make up for it. Nothing where it does not.
  DeviceScratch scaled(const AttentionRequest& request, const QueryMemory& memory, cudaStream_t stream);
  enum class Way {
    kFused,  // the family's kernels
    kTree,   // those for what came before a tree of guesses, rows for the tree, and both merged
    kRows,
  };
  // Of sequence i.
  Way way_of(const AttentionRequest& request, int i) const;
  // Whether sequence i goes along in a launch that others are in already.
  bool joins(const AttentionRequest& request, int i, FusedGroup& group) const;
  // What sequence i counts as, in tiles of pages.
  Engine::Tiles tiles_of(const AttentionRequest& request, int i) const;
  // memory: of all rows of the request.
  void attend_trees(const AttentionRequest& request, const QueryMemory& memory);
  // The same. among_themselves: queries with masks see each other alone.
  void attend_rows(const AttentionRequest& request, const QueryMemory& memory, bool among_themselves);

  const DeviceLayer& layer_;
  std::vector<DeviceScratch> captured_;  // scaled queries of graphs, which keep theirs
};

}  // namespace kvasir::cuda
