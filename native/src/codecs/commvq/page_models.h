// Codebooks as models of pages, for the codec commvq.
#pragma once

#include <memory>

#include "codecs/commvq/model.h"
#include "kvasir/commvq.h"

namespace kvasir::commvq {

// refinements: as KeyCodebook::encode takes them.
std::unique_ptr<KeyModel> make_key_model(const KeyCodebook& codebook, int refinements);

// encoder: null for bits by the codebook's thresholds and flips; else at most `flips` of the encoder's bits change.
// Throws kInvalidArgument where they do not fit each other, or the codebook is not for whole heads.
std::unique_ptr<ValueModel> make_value_model(const ValueCodebook& codebook, const ValueEncoder* encoder, int flips,
                                             int kv_heads, int head_dim);

}  // namespace kvasir::commvq
