// AttendBatch: one call of attention, over any number of sequences with any numbers of query tokens each.
//
//   AttendBatch step;                                  // one token of each of 64 sequences, in bfloat16
//   step.layer = 3;
//   step.sequences = ids;
//   step.count = 64;
//   step.queries = {queries, ElementType::kBFloat16};  // [64][query_heads][head_dim]
//   step.outputs = {outputs, ElementType::kBFloat16};
//   cache->attend(step);
//
// Rows of a sequence's tokens follow those of the sequence before it; "rows" below are all of them. A chunk of a prompt
// may stand beside single tokens: `tokens` then says how many each sequence has.
#pragma once

#include <cstdint>

#include "kvasir/types.h"

namespace kvasir {

// Most query tokens of a sequence that masks can be given for.
constexpr int kMaxMaskedTokens = 64;

struct AttendBatch {
  int layer = 0;
  const int64_t* sequences = nullptr;  // [count]; one may be listed more than once
  int count = 0;
  // Query tokens of each sequence, which are its newest: query i of n sees the keys up to position length - n + i.
  const int* tokens = nullptr;  // [count], or null: each has tokens_each
  int tokens_each = 1;

  RowsView queries;         // [rows][query_heads][head_dim]; row_dim where keys and values share a row
  MutableRowsView outputs;  // the same, or of value_dim, in a type of its own; on the host they may be written over the
                            // queries

  // Null, or [rows][query_heads]: the natural logarithm of the denominator of each softmax, that is, of the sum of
  // exp(logit) over all that the query sees, with logits scaled and, where the layer has a cap, capped. What outputs
  // are, too: output * exp(log_sum) is the sum of exp(logit) * value. merge_attention puts two results together by it.
  float* log_sums = nullptr;
  // Whether the layer's learned sinks (CacheConfig::set_sink_logits) count, in outputs and log_sums alike. Where one
  // attention is computed in parts, they must count in exactly one of them.
  bool learned_sinks = true;

  // Trees of guesses. Null, or [rows]: query i of a sequence's n newest tokens, 64 at most, sees all tokens before
  // those n, and of the n those j whose bit j is set in its mask. Its own bit must be. Sequences whose masks are all 0
  // have none.
  const uint64_t* masks = nullptr;
  // With masks: how far behind those before the n each token stands, 0..63, as RoPE counts. Null: the other bits of
  // its mask, which in a tree are its ancestors. Sliding windows go by it, and keys that are stored before RoPE; keys
  // after RoPE come with their positions.
  const int* depths = nullptr;

  // In memory of the cache's device: queries, outputs and log_sums; in the order of a stream (a cudaStream_t; null is
  // the default one). Queries and outputs must not overlap. Fastest where both are dense, of one type and begin at
  // multiples of 16 bytes.
  bool on_device = false;
  void* stream = nullptr;
};

// Attention over all that two results saw, which must be different tokens: `outputs` and `log_sums` become it. Both are
// of [tokens][heads][head_dim] and [tokens][heads], in memory of this machine; computed in double, rounded once. A
// log-sum of -infinity says that nothing was seen. Throws kInvalidArgument; the parts may be results of two caches, or
// of a cache and of attention computed elsewhere.
void merge_attention(const MutableRowsView& outputs, float* log_sums, const RowsView& other_outputs,
                     const float* other_log_sums, int64_t tokens, int heads, int head_dim);

}  // namespace kvasir
