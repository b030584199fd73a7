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

// Of a page of some shape: its sides, and the address that their offsets count from.
using SidesOf = std::function<Sides(const PageShape& shape)>;
using AddressOf = std::function<uint8_t*(const NewPage& page)>;
void seal_codes(const DeviceLayer& layer, const StagedPages& staged, const NewPages& pages, const SidesOf& sides_of,
                const AddressOf& address_of);
void read_codes(const DeviceLayer& layer, const PageRun& run, const SideFormat& side, float* out);
void read_code_halves(const DeviceLayer& layer, const PageRun& run, const SideFormat& side, const HalfRows& out);
void shrink_codes(const DeviceLayer& layer, const std::vector<ShrinkingPage>& pages, const Sides& from,
                  const Sides& to);

// As canonical pages have them. Where parts vary in size, pages are given as PageRun::addresses(Side) gives them.
SideFormat canonical_side(const PageShape& shape, Side side);
std::unique_ptr<CanonicalSide> codes_side(const DeviceLayer& layer, Side side);

}  // namespace kvasir::cuda
