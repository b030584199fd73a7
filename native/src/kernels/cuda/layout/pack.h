// Pages between the canonical layout (docs/format.md) and the device layout (fragments.h). Exact both ways, on the
// host.
#pragma once

#include <cstdint>

#include "kernels/cuda/layout/fragments.h"

namespace kvasir::cuda {

// One kv head's keys or values, in any format that has_fragments (side_format.h). `keys` and `values` are what
// docs/format.md describes; `block` is a head block of fragments.h.
void pack_keys(const HeadLayout& layout, const uint8_t* keys, uint8_t* block);
void pack_values(const HeadLayout& layout, const uint8_t* values, uint8_t* block);
void unpack_keys(const HeadLayout& layout, const uint8_t* block, uint8_t* keys);
void unpack_values(const HeadLayout& layout, const uint8_t* block, uint8_t* values);

}  // namespace kvasir::cuda
