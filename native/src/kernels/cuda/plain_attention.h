// Attention on float32 rows: the way for pages that no fused kernel reads, and for chunks of query tokens.
//
//   for each chunk of a sequence's tokens:   rows decoded (decode_rows.h, row_decoders.h, rows.h: read_rows),
//                                            add_labelled_vectors, turn_keys: where the codec has them
//                                            launch_plain_chunk
//   then                                     launch_plain_finish
//
// Chunks may come in any order, and tokens of a chunk stand side by side. Between launches the softmax states of all
// query rows are in `states`. Nothing is allocated or waited for. Equal calls give equal bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "codecs/page_format.h"
#include "kernels/cuda/decode_types.h"
#include "kvasir/rope.h"

namespace kvasir::cuda {

struct PlainRequest {
  int kv_heads;
  int group;     // query heads of a kv head
  int head_dim;  // a multiple of 16 in 32..256
  int tokens;    // query tokens
  NumberType type;
  const void* queries;  // [tokens][kv_heads * group][head_dim]
  void* outputs;        // the same
  int64_t first_query;  // position of the first query token
  int64_t sliding_window;
  float scale;
  float* states;  // plain_state_bytes
};

size_t plain_state_bytes(const PlainRequest& request);

struct PlainChunk {
  const float* keys;    // [kv_heads][stride][head_dim]
  const float* values;  // the same
  int64_t stride;       // rows of a head
  int64_t tokens;
  int64_t position;  // of the first token; the others follow
};

// `first`: the states hold nothing yet.
cudaError_t launch_plain_chunk(const PlainRequest& request, const PlainChunk& chunk, bool first, cudaStream_t stream);
// Writes the outputs; zeros where a query saw nothing.
cudaError_t launch_plain_finish(const PlainRequest& request, cudaStream_t stream);

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

// Adds to decoded residuals the vectors that their labels name (pattern_layout.h, docs/format.md "Side table").
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
  bool fragments;        // labels stand in the order of pattern_layout.h, else as tokens do
  PatternTable table;
};
cudaError_t launch_add_labelled_vectors(const LabelledRows& rows, cudaStream_t stream);

// queries[row][c] *= scaling[kv head][c], for layers that scale their keys. `from` and `to` may be the same.
cudaError_t launch_scale_queries(const void* from, void* to, NumberType type, int64_t tokens, int kv_heads, int group,
                                 int head_dim, const float* scaling, cudaStream_t stream);

}  // namespace kvasir::cuda
