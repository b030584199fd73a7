// Pages of docs/format.md: each side is its codec's own affair, and what they have in common is here.
#pragma once

#include <memory>

#include "engine/cuda/families/family.h"

namespace kvasir::cuda {

class CanonicalFamily : public PageFamily {
 public:
  explicit CanonicalFamily(const DeviceLayer& layer);

  bool lay_out(StagedPages& staged, const uint8_t* sums, PartHeads& heads) const override;
  void seal(const StagedPages& staged, const NewPages& pages) const override;
  const uint8_t* part(const PageView& page, Side side, int kv_head) const override;
  void write_page(const NewPage& page, const uint8_t* from) const override;
  const uint8_t* part_widths(const PageView& page, Side side, int kv_head) const override;
  bool shrink(const std::vector<ShrinkingPage>& pages) const override;
  bool has_half_rows(Side side) const override { return at(side).has_half_rows(); }
  void read_half_rows(const PageRun& run, Side side, const HalfRows& out) const override {
    at(side).read_half_rows(run, out);
  }
  void read_rows(const PageRun& run, float* const (&out)[2]) const override;

 protected:
  const CanonicalSide& at(Side side) const { return *sides_[static_cast<int>(side)]; }

  const DeviceLayer& layer_;

 private:
  void seal_here(const NewPages& pages) const;
  const uint8_t* download(const uint8_t* from, size_t bytes) const;

  std::unique_ptr<CanonicalSide> sides_[2];
};

}  // namespace kvasir::cuda
