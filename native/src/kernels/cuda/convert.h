// Pages between the canonical layout (docs/format.md) and the device layout (layout.h). Exact both ways, on the host.
#pragma once

#include <cstdint>

#include "codecs/codec.h"
#include "kernels/cuda/layout.h"

namespace kvasir::cuda {

// Whether the uniform codec's `format` has a device layout: its width, head dim, axis and groups.
bool uniform_supported(const PageFormat& format);

// One kv head's keys or values. `bits` is kFloat16Bits for the codec f16 and the code width for uniform with its
// default axis and group. `keys` and `values` are what docs/format.md describes; `block` is a head block of layout.h.
void pack_keys(const HeadLayout& layout, const uint8_t* keys, uint8_t* block);
void pack_values(const HeadLayout& layout, const uint8_t* values, uint8_t* block);
void unpack_keys(const HeadLayout& layout, const uint8_t* block, uint8_t* keys);
void unpack_values(const HeadLayout& layout, const uint8_t* block, uint8_t* values);

}  // namespace kvasir::cuda
