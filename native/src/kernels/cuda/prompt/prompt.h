// Attention of a chunk of query tokens, causal among themselves, over rows decoded to float16: prompts, and pages that
// no fused kernel reads.
//
//   for each part of a sequence's tokens:   rows decoded (rows/unpack.h: unpack_half_rows; or float32 rows of a codec's
//                                           own, rows/finish.h, then round_rows)
//                                           launch_prompt_part
//   then                                    launch_prompt_finish
//
// Parts may come in any order, and tokens of a part stand side by side. Between launches the softmax states of all
// query rows are in `states`. Nothing is allocated or waited for. Equal calls give equal bits, and what a prompt gets
// does not depend on others that are launched with it.
//
// Products are float16 times float16, summed in float32. What float16 cannot hold of an operand is a second operand,
// and one more product, where the precision asks for it:
//
//                   queries            keys   weights   values   error (NMSE)
//   kFast           1                  1      1         1        1e-7 for scores of about 1, and as their square
//   kExact          2, 1 of 16 bits    2      1         1        5e-8: scores are those of float32
//   kHalves         2, 1 of 16 bits    1      2         1        float32's, for rows that are float16 numbers
//   kTurnedHalves   2, 1 of 16 bits    2      2         1        float32's, for values that are float16 numbers
//
// Queries are first multiplied by a power of two that is their row's own, so that their size does not matter. Decoded
// keys and values below 2^-14 are held to 2^-25.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/primitives/row_ends.h"
#include "kvasir/types.h"

namespace kvasir::cuda {

enum class PromptPrecision : int { kFast, kExact, kHalves, kTurnedHalves };

constexpr bool has_low_keys(PromptPrecision precision) {
  return precision == PromptPrecision::kExact || precision == PromptPrecision::kTurnedHalves;
}

// What a query token of a tree of guesses sees: all tokens before the first of them, `masked_from`, up to `reach`
// positions back where a window slides, and of the others those whose bits are set.
struct PromptMask {
  uint64_t bits;
  int64_t position;
};
constexpr int kMostMasked = 64;

struct PromptRequest {
  int kv_heads;
  int group;     // query heads of a kv head
  int head_dim;  // a multiple of 16 in 32..256
  int tokens;    // query tokens
  ElementType type;
  PromptPrecision precision;
  const void* queries;  // [tokens][kv_heads * group][head_dim], 16-byte aligned
  void* outputs;        // the same
  int64_t first_query;  // position of the first query token
  int64_t sliding_window;
  float scale;            // positive
  float* states;          // prompt_state_bytes
  float soft_cap = 0.0f;  // scaled scores become soft_cap * tanh(score / soft_cap); 0: none
  RowEnds ends = {};
  const PromptMask* masks = nullptr;  // [tokens] in device memory; null: each sees what is up to it
  int64_t masked_from = 0;            // with masks; kMostMasked tokens at most come from there on
  int64_t part_tokens = 0;            // that no part has more of: few are not divided among blocks; 0: not known
};

size_t prompt_state_bytes(const PromptRequest& request);

struct PromptRows {
  const uint16_t* keys;      // [kv_heads][stride][head_dim], float16, 16-byte aligned like the others
  const uint16_t* keys_low;  // the same: what `keys` lack, where has_low_keys; else null
  const uint16_t* values;    // the same as keys
  int64_t stride;            // rows of a head
  int64_t tokens;
  int64_t position;  // of the first token; the others follow
};

// A part of one prompt among those that are launched together. Their requests differ in tokens, positions, masks and
// memory alone, and no two are of one prompt.
struct PromptPart {
  PromptRequest request;
  PromptRows rows;
  bool first;  // the states hold nothing yet
};
constexpr int kMostPrompts = 32;  // that one launch takes; more are several

cudaError_t launch_prompt_parts(const PromptPart* parts, int count, cudaStream_t stream);
// Writes the outputs; zeros where a query saw nothing.
cudaError_t launch_prompt_finishes(const PromptRequest* requests, int count, cudaStream_t stream);

// The same of one prompt.
inline cudaError_t launch_prompt_part(const PromptRequest& request, const PromptRows& rows, bool first,
                                      cudaStream_t stream) {
  const PromptPart part = {request, rows, first};
  return launch_prompt_parts(&part, 1, stream);
}
inline cudaError_t launch_prompt_finish(const PromptRequest& request, cudaStream_t stream) {
  return launch_prompt_finishes(&request, 1, stream);
}

}  // namespace kvasir::cuda
