// Pages of fragments.h from and to the layout of docs/format.md, on the device: byte for byte what pack.h does on the
// host. For pages that come from files, and go there.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/layout/fragments.h"

namespace kvasir::cuda {

// What pages of one launch have in common.
struct RepackShape {
  HeadLayout layout;
  int kv_heads;
  int64_t key_bytes, value_bytes;    // of one kv head's canonical part
  int64_t key_labels, value_labels;  // where labels begin in it, for layouts that have them

  bool operator==(const RepackShape& other) const {
    const HeadLayout &a = layout, &b = other.layout;
    return a.head_dim == b.head_dim && a.key_bits == b.key_bits && a.value_bits == b.value_bits &&
           a.token_keys == b.token_keys && a.labels == b.labels && kv_heads == other.kv_heads &&
           key_bytes == other.key_bytes && value_bytes == other.value_bytes && key_labels == other.key_labels &&
           value_labels == other.value_labels;
  }
};

// One page. Addresses are in device memory, at multiples of 64.
struct RepackPage {
  uint8_t* canonical;  // keys of all kv heads, then their values
  uint8_t* page;       // head blocks
};

// Writes each `page`, all of it. The list is read before this returns.
cudaError_t pack_pages(const RepackShape& shape, const RepackPage* pages, int count, cudaStream_t stream);
// Writes each `canonical`, all of it.
cudaError_t unpack_pages(const RepackShape& shape, const RepackPage* pages, int count, cudaStream_t stream);

}  // namespace kvasir::cuda
