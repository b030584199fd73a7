// Attention where keys and values share a row (CacheConfig::set_latent), of up to 576 channels: on float32 rows, for
// any number of query tokens. Exact, and made for any shape rather than for speed.
//
//   for each part of a sequence's tokens:   rows decoded (rows/unpack.h), in the slices that they are stored in
//                                           launch_shared_rows_part
//   then                                    launch_shared_rows_finish
//
// As in prompt.h, whose request this takes: kv_heads is 1, head_dim the channels of a row. Precisions do not matter.
#pragma once

#include "kernels/cuda/prompt/prompt.h"

namespace kvasir::cuda {

// Of both requests' states.
size_t shared_rows_state_bytes(const PromptRequest& request, int value_dim);

struct SharedRows {
  const float* halves[2];  // [slices][stride][head_dim / 2 / slices]: the first half of the channels, and the second
  int slices;
  int64_t stride;  // rows of a slice
  int64_t tokens;
  int64_t position;  // of the first token; the others follow
};

// `first`: the states hold nothing yet.
cudaError_t launch_shared_rows_part(const PromptRequest& request, int value_dim, const SharedRows& rows, bool first,
                                    cudaStream_t stream);
// outputs: [tokens][group][value_dim]; zeros where a query saw nothing.
cudaError_t launch_shared_rows_finish(const PromptRequest& request, int value_dim, cudaStream_t stream);

}  // namespace kvasir::cuda
