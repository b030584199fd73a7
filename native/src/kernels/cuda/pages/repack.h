// Pages of fragments.h from and to the layout of docs/format.md, on the device: byte for byte what pack.h does on the
// host. For pages that come from files, and go there.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/layout/fragments.h"

namespace kvasir::cuda {

// One page. Addresses are in device memory, at multiples of 64.
struct RepackRequest {
  HeadLayout layout;
  int kv_heads;
  int64_t key_bytes, value_bytes;    // of one kv head's canonical part
  int64_t key_labels, value_labels;  // where labels begin in it, for layouts that have them
  uint8_t* canonical;                // keys of all kv heads, then their values
  uint8_t* page;                     // head blocks
};

// Writes `page`, all of it.
cudaError_t pack_page(const RepackRequest& request, cudaStream_t stream);
// Writes `canonical`, all of it.
cudaError_t unpack_page(const RepackRequest& request, cudaStream_t stream);

}  // namespace kvasir::cuda
