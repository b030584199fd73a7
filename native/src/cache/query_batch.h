// The queries of one attend call, as the cache hands them to its engine: checked, told apart by sequence, and copied
// where they are in memory of this machine. Queries are read once: after that the caller, or the outputs where they
// overlap, may write to them.
#pragma once

#include <cstdint>
#include <vector>

#include "base/aligned.h"
#include "engine/engine.h"
#include "kvasir/attend.h"

namespace kvasir {

class QueryBatch {
 public:
  // Checks all that needs no sequence, and reads no queries. Throws kInvalidArgument.
  QueryBatch(const LayerPlan& plan, const AttendBatch& batch);
  QueryBatch(const QueryBatch&) = delete;

  const std::vector<QueryRun>& runs() const { return runs_; }
  // Gives the view of sequence i the positions that the depths of its guesses mean, where keys are turned by them.
  void place_guesses(int i, SequenceView& view);

  // Once all is checked: the queries, if they are here, are copied, and there is memory for the outputs.
  void take();
  // After that: [rows][query_heads][query_dim], and of output_dim.
  const float* queries() const { return queries_.get(); }
  float* outputs() const { return outputs_ ? outputs_.get() : static_cast<float*>(batch_.outputs.data); }
  // Where they are not here.
  DeviceQueries device() const { return {batch_.queries, batch_.outputs, batch_.log_sums, batch_.stream}; }
  // Outputs go where, and as what, the caller wants them.
  void deliver() const;

 private:
  void find_runs();
  void check_masks();
  void check_mask(const QueryRun& run, int query) const;

  const LayerPlan& plan_;
  AttendBatch batch_;  // with its strides spelled out
  int64_t rows_ = 0;
  std::vector<QueryRun> runs_;
  std::vector<uint64_t> masks_;  // [rows]; of sequences without, anything
  std::vector<int> depths_;      // the same
  std::vector<std::vector<PositionShift>> shifts_;
  AlignedArray<float> queries_, outputs_;
};

}  // namespace kvasir
