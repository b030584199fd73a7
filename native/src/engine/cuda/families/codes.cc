#include "engine/cuda/families/codes.h"

#include "kernels/cuda/pages/encode.h"
#include "kernels/cuda/pages/shrink.h"

namespace kvasir::cuda {

void seal_codes(const DeviceLayer& layer, const StagedPages& staged, const NewPages& pages, const SidesOf& sides_of,
                const AddressOf& address_of) {
  // Runs of pages of one shape, because mixed widths come in order, whose rows are in one place.
  const std::vector<NewPage>& all = pages.pages;
  const auto is_staged = [&](size_t page) { return staged.staged(static_cast<int64_t>(page)); };
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    const PageShape* shape = all[begin].view->shape;
    std::vector<uint8_t*> run;
    for (; end < all.size() && all[end].view->shape == shape && is_staged(end) == is_staged(begin); ++end) {
      run.push_back(address_of(all[end]));
    }
    const Sides sides = sides_of(*shape);
    EncodeRequest request = {};
    request.shape = layer.row_shape();
    for (size_t side = 0; side < 2; ++side) request.sides[side] = sides[side];
    request.staging = staged.staging;
    request.first_row = static_cast<int64_t>(begin) * kPageTokens;
    if (!is_staged(begin)) {
      request.input = staged.input;
      request.first_row += staged.first_token - staged.staging.rows;
    }
    request.pages = run.data();
    request.page_count = static_cast<int64_t>(run.size());
    check(encode_pages(request, layer.queue().stream), "sealing pages");
  }
}

void read_codes(const DeviceLayer& layer, const PageRun& run, const SideFormat& side, float* out) {
  const int index = static_cast<int>(side.format.side), d = layer.row_shape().head_dim;
  const std::vector<const uint8_t*> pages = run.addresses(side.format.side);
  UnpackRowsRequest request = {};
  request.shape = layer.row_shape();
  request.sides[index] = side;
  request.pages = pages.data();
  request.page_count = run.count();
  request.out = {{nullptr, nullptr}, d, run.tokens() * d};
  request.out.sides[index] = out;
  check(unpack_rows(request, layer.queue().stream), "unpacking pages");
}

void read_code_halves(const DeviceLayer& layer, const PageRun& run, const SideFormat& side, const HalfRows& out) {
  const int index = static_cast<int>(side.format.side);
  const std::vector<const uint8_t*> pages = run.addresses(side.format.side);
  UnpackHalfRowsRequest request = {};
  request.shape = layer.row_shape();
  request.sides[index] = side;
  request.pages = pages.data();
  request.page_count = run.count();
  request.out[index] = out;
  check(unpack_half_rows(request, layer.queue().stream), "unpacking pages");
}

void shrink_codes(const DeviceLayer& layer, const std::vector<ShrinkingPage>& pages, const Sides& from,
                  const Sides& to) {
  std::vector<ShrinkPage> list;
  for (const ShrinkingPage& page : pages) list.push_back({page.data, page.data});
  ShrinkRequest request = {};
  request.shape = layer.row_shape();
  for (int side = 0; side < 2; ++side) {
    request.from[side] = from[side];
    request.to[side] = to[side];
  }
  request.pages = list.data();
  request.page_count = static_cast<int64_t>(list.size());
  check(shrink_pages(request, layer.queue().stream), "shrinking pages");
}

SideFormat canonical_side(const PageShape& shape, Side side) {
  const PageFormat& format = shape.formats[static_cast<int>(side)];
  const size_t offset = shape.varies() ? 0 : shape.part_offset(side, 0);
  return {format, false, static_cast<int64_t>(offset), static_cast<int64_t>(format.page_bytes)};
}

namespace {

class CodesSide : public CanonicalSide {
 public:
  CodesSide(const DeviceLayer& layer, Side side) : layer_(layer), side_(side) {}

  void seal(const StagedPages& staged, const NewPages& pages) const override {
    const auto own_side = [&](const PageShape& shape) {
      Sides sides = {};
      sides[static_cast<size_t>(side_)] = canonical_side(shape, side_);
      return sides;
    };
    seal_codes(layer_, staged, pages, own_side, [&](const NewPage& page) {
      return page.data + (page.view->shape->varies() ? page.view->part_offset(side_, 0) : 0);
    });
  }
  bool shrinks() const override { return true; }
  bool has_half_rows() const override { return true; }
  void read_half_rows(const PageRun& run, const HalfRows& out) const override {
    read_code_halves(layer_, run, canonical_side(run.shape(), side_), out);
  }
  void read_rows(const PageRun& run, float* out) const override {
    read_codes(layer_, run, canonical_side(run.shape(), side_), out);
  }

 private:
  const DeviceLayer& layer_;
  const Side side_;
};

}  // namespace

std::unique_ptr<CanonicalSide> codes_side(const DeviceLayer& layer, Side side) {
  return std::make_unique<CodesSide>(layer, side);
}

}  // namespace kvasir::cuda
