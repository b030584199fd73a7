// What float32 rows still need when they are unpacked: the vectors of labels, RoPE, and at last float16
// for the tensor cores.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/page_format.h"
#include "kernels/cuda/layout/labels.h"
#include "kernels/cuda/rows/unpack.h"
#include "kvasir/types.h"

namespace kvasir::cuda {

// Turns keys that are stored before RoPE, in place: rows `first` .. first + count - 1 of each head, which stand at
// positions position, position + 1, ... frequencies: [head_dim / 2] in device memory, radians a position.
struct KeyTurning {
  float* keys;  // [kv_heads][stride][head_dim]
  int kv_heads;
  int head_dim;
  int64_t stride;
  int64_t first;
  int64_t count;
  int64_t position;
  RopePairs pairs;
  const double* frequencies;
  double magnitude;
};
cudaError_t launch_turn_keys(const KeyTurning& turning, cudaStream_t stream);

// Adds to decoded residuals the vectors that their labels name (layout/labels.h, docs/format.md "Side table").
struct LabelledRows {
  float* rows;  // [kv_heads][stride][head_dim]: page p is rows 128 p .. 128 p + 127
  int64_t stride;
  int kv_heads;
  int head_dim;
  Side side;
  const uint8_t* const* pages;  // [page_count], in device memory
  int64_t page_count;
  int64_t first_page;    // number of the first of them, counted as table.first_page counts
  int64_t label_offset;  // of kv head 0's labels in a page
  int64_t label_stride;  // to the next kv head's
  bool fragments;        // labels stand in the order of layout/labels.h, else as tokens do
  VectorTable table;
};
cudaError_t launch_add_labelled_vectors(const LabelledRows& rows, cudaStream_t stream);

// Rounds one side: rows are [kv_heads][count][head_dim].
cudaError_t round_rows(const RowShape& shape, const float* rows, int64_t count, const HalfRows& out,
                       cudaStream_t stream);

}  // namespace kvasir::cuda
