// The steps of sealing CommVQ's values, in their order. Tokens are those of some whole pages; value_seal_exact.cu puts
// the steps together.
#pragma once

#include "kernels/cuda/commvq/seal.h"

namespace kvasir::cuda {

// Scratch, by token. Bits: bit n of a token is bit n % 32 of word n / 32.
struct ValueScratch {
  float* sums;     // [tokens][width]
  float* slopes;   // [tokens][codes]
  uint32_t* bits;  // [tokens][words]
  float* hidden;   // [tokens][network.hidden]
  int64_t words;
};

// bits = what the network says. Uses sums and hidden.
cudaError_t run_value_network(const ValueSearch& search, const uint16_t* rows, int64_t head_elements, int64_t tokens,
                              const ValueScratch& scratch, cudaStream_t stream);

// bits by the thresholds, from none. `slopes` follow them.
cudaError_t decide_bits(const ValueSearch& search, int64_t tokens, const ValueScratch& scratch, cudaStream_t stream);

// At most search.flips single bits, each the one that lowers the error most, while one does.
cudaError_t flip_bits(const ValueSearch& search, int64_t tokens, const ValueScratch& scratch, cudaStream_t stream);

}  // namespace kvasir::cuda
