// Sides of float16 elements and min-max codes (SideFormat), wherever they lie: launches that several families share.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "engine/cuda/families/family.h"
#include "kernels/cuda/layout/side_format.h"

namespace kvasir::cuda {

// Both sides of a page; one that is not present is left alone.
using Sides = std::array<SideFormat, 2>;

// Pages p of `pages` take rows 128 (first + p), ... of the staging.
void seal_codes(const DeviceLayer& layer, const Staging& staging, int64_t first, const std::vector<uint8_t*>& pages,
                const Sides& sides);
void read_codes(const DeviceLayer& layer, const PageRun& run, const SideFormat& side, float* out);
void read_code_halves(const DeviceLayer& layer, const PageRun& run, const SideFormat& side, const HalfRows& out);
void shrink_codes(const DeviceLayer& layer, const std::vector<ShrinkingPage>& pages, const Sides& from,
                  const Sides& to);

// As canonical pages have them. Where parts vary in size, pages are given as PageRun::addresses(Side) gives them.
SideFormat canonical_side(const PageShape& shape, Side side);
std::unique_ptr<CanonicalSide> codes_side(const DeviceLayer& layer, Side side);

}  // namespace kvasir::cuda
