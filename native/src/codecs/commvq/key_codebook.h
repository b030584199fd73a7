// A key codebook inside the library, for the codec that stores its codes.
#pragma once

#include "codecs/commvq/key_tables.h"
#include "kvasir/commvq.h"

namespace kvasir {

struct KeyCodebook::Impl {
  // Checks its arguments, those of KeyCodebook::create, and rounds the tables.
  Impl(const commvq::KeyShape& shape, const float* tables, const CodebookKernels& kernels);

  const CodebookKernels& kernels;
  commvq::KeyShape shape;
  std::vector<commvq::Stage> stages;  // [kv_heads][stages]

  const commvq::Stage& stage(int kv_head, int stage) const {
    return stages[static_cast<size_t>(kv_head) * shape.stages + stage];
  }
  // One head of up to kPageTokens tokens. rows: [tokens][width], of which the head's channels count; divisors: those of
  // token_norm. codes: page().head_bytes(); after the last token they are 0.
  void encode_head(int kv_head, const float* rows, const float* divisors, int tokens, int refinements,
                   uint8_t* codes) const;
  void decode_head(int kv_head, const uint8_t* codes, const uint16_t* norms, int tokens, float* rows) const;
};

}  // namespace kvasir
