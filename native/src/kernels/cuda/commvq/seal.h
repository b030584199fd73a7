// Seals CommVQ's pages on the device: float16 rows of the staging become the parts of docs/format.md.
//
//   keys     key_cross once a layer; then seal_commvq_keys
//   values   value_gram once a layer; then seal_commvq_values
//
// Codes, bits, norms and gains are the host's (base/codebook.h): sums that decide run over their terms one by one, and
// nothing is fused that would round otherwise. Two things are not its operations: sums of squares in double, whose
// terms are added in another order, and erf in a network. Both may move a number by its last bit, and a bit with it
// where two choices are as good as equal.
//
// Nothing is allocated or waited for. Lists of parts are on the host and are read before a call returns. Pages are
// taken some at a time, so that scratch does not grow with the prompt.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "codecs/commvq/model.h"
#include "kernels/cuda/layout/staging.h"

namespace kvasir::cuda {

// One side of consecutive pages: part p holds staging rows 128 p .. 128 p + 127 of all kv heads.
struct CommVqSealRequest {
  Staging staging;
  uint8_t* const* parts;  // [page_count], device addresses, 64-byte aligned
  int64_t page_count;
  void* scratch;  // 256-byte aligned

  bool has_rows() const { return page_count >= 0 && page_count * kPageTokens <= staging.rows; }
};

// What the search for keys reads. Tables are those of commvq::KeyModel, in device memory.
struct KeySearch {
  commvq::KeyPage page;
  int head_dim;
  RopePairs pairs;
  int refinements;
  const uint16_t* tables;
  const float* cross;  // [kv_heads][stages][b][a]: |z_a + i z_b|^2

  KVASIR_HOST_DEVICE int entries() const { return 1 << page.index_bits; }
};

// Whether the current device has the shared memory for it: 112 KB with 64 entries of 256 channels, 75 of 128. `tables`
// and `cross` need not be there yet.
bool seals_commvq_keys(const KeySearch& search);

size_t key_cross_bytes(const KeySearch& search);
cudaError_t key_cross(const KeySearch& search, float* cross, cudaStream_t stream);

size_t key_scratch_bytes(const KeySearch& search, int64_t page_count);
cudaError_t seal_commvq_keys(const KeySearch& search, const CommVqSealRequest& request, cudaStream_t stream);

// What the search for values reads, all in device memory. Tables are those of commvq::ValueModel.
struct ValueSearch {
  commvq::ValuePage page;
  int kv_heads, head_dim;
  int flips;  // most of a token
  const uint16_t* tables;
  const float* gram;             // [codes][codes]: products of rows; then their diagonal
  const float* thresholds;       // [codes]
  bool has_network;              // else bits begin by the thresholds
  commvq::ValueNetwork network;  // `hidden` a multiple of 16: what is beyond the model's own is 0

  KVASIR_HOST_DEVICE int width() const { return kv_heads * head_dim; }
  KVASIR_HOST_DEVICE const float* diagonal() const { return gram + static_cast<int64_t>(page.codes) * page.codes; }
};
constexpr int kMaxValueCodes = 16384;

// Whether the current device has the shared memory for it: 8 bytes a code where bits are flipped. Nothing that `search`
// points to need be there yet.
bool seals_commvq_values(const ValueSearch& search);

size_t value_gram_bytes(const ValueSearch& search);
cudaError_t value_gram(const ValueSearch& search, float* gram, cudaStream_t stream);

size_t value_scratch_bytes(const ValueSearch& search, int64_t page_count);
cudaError_t seal_commvq_values(const ValueSearch& search, const CommVqSealRequest& request, cudaStream_t stream);

}  // namespace kvasir::cuda
