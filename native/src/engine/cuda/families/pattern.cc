// Codec pattern: codes of residuals, labels, and a table of vectors that labels refer to. Both sides of fragments are
// matched and sealed on the device; a side among canonical pages is sealed by this machine, and so are both where
// blocks of the device have not the shared memory for it.
#include <algorithm>

#include "base/kmeans.h"
#include "codecs/pattern/format.h"
#include "engine/cuda/families/fragments.h"
#include "kernels/cuda/layout/labels.h"
#include "kernels/cuda/pattern/kmeans.h"
#include "kernels/cuda/pattern/seal.h"
#include "kernels/cuda/rows/finish.h"

namespace kvasir::cuda {
namespace {

// Residuals, then the vectors that labels name.
void read_labelled(const DeviceLayer& layer, const PageRun& run, const SideFormat& side, float* out) {
  read_codes(layer, run, side, out);
  const Side which = side.format.side;
  const DeviceScratch list = layer.queue().uploaded(run.addresses(which), "uploading a list of pages");
  LabelledRows rows = {};
  rows.rows = out;
  rows.stride = run.tokens();
  rows.kv_heads = layer.row_shape().kv_heads;
  rows.head_dim = layer.row_shape().head_dim;
  rows.side = which;
  rows.pages = list.as<const uint8_t*>();
  rows.page_count = run.count();
  rows.first_page = run.begin;
  rows.fragments = side.fragments;
  rows.label_offset = side.fragments ? 0 : side.offset + static_cast<int64_t>(pattern::labels_offset(side.format));
  rows.label_stride = side.stride;
  rows.table = state_of(run.view).table(which);
  check(launch_add_labelled_vectors(rows, layer.queue().stream), "adding patterns");
}

class PatternFamily : public FragmentsFamily {
 public:
  using FragmentsFamily::FragmentsFamily;

  bool grow(const StagedPages& staged, Side side, SealInput& input, SideTable& table,
            CudaLayerState& state) const override {
    const PageFormat& format = layer_.format(side);
    const bool mining = table.chunks.empty();
    if (!mining && !pattern::adds_patterns(format)) return true;
    const int64_t points = std::min(input.tokens, pattern::kMiningPoints);
    const int64_t patterns = pattern::mined_patterns(format);
    const int added = static_cast<int>(mining ? std::min(patterns, points) : input.page_count);
    const int first = table.size();
    const VectorMemory vectors = state.room_for(side, table, first + added);
    if (mining) {
      mine(staged, side, input.tokens, points, added, vectors);
    } else {
      add_page_centres(staged, side, input.page_count, first, vectors);
    }
    const std::shared_ptr<uint16_t> copy = input.take(int64_t{input.kv_heads} * added * format.head_dim);
    state.read_vectors(side, first, added, copy.get());
    if (mining) {
      table.chunks.push_back({copy, added, 0});
      return true;
    }
    // Chunks after the first have one vector a head; `copy` has them page by page.
    for (int i = 0; i < added; ++i) {
      const std::shared_ptr<const uint16_t> one(copy, copy.get() + int64_t{i} * input.kv_heads * format.head_dim);
      table.chunks.push_back({one, 1, input.first_page + i});
    }
    return true;
  }

  bool seals_input() const override { return false; }
  void seal(const StagedPages& staged, const NewPages& pages) const override {
    PatternSealRequest request = {};
    request.shape = layer_.row_shape();
    for (const Side side : {Side::kKeys, Side::kValues}) {
      const int index = static_cast<int>(side);
      const PageFormat& format = layer_.format(side);
      request.bits[index] = format.bits;
      request.grids[index] = format.grid;
      request.options[index] = {true, pattern::by_squares(format), pattern::tests_labels(format),
                                format.numbers[pattern::kAcceptRatio], pattern::matches_raw(format)};
      request.tables[index] = pages.state.describe(side, pages.tables[index], 0);
    }
    const std::vector<uint8_t*> addresses = pages.addresses();
    request.staging = staged.staging;
    request.first_page = pages.pages[0].number;
    request.pages = addresses.data();
    request.page_count = static_cast<int64_t>(addresses.size());
    check(seal_pattern_pages(request, layer_.queue().stream), "sealing pages");
  }

  bool has_half_rows(Side) const override { return false; }
  void read_rows(const PageRun& run, float* const (&out)[2]) const override {
    for (size_t side = 0; side < 2; ++side) {
      if (out[side]) read_labelled(layer_, run, sides(run.shape())[side], out[side]);
    }
  }

 protected:
  void finish_part(const PageFormat& format, const uint8_t* block, uint8_t* part) const override {
    uint8_t* labels = part + pattern::labels_offset(format);
    for (int t = 0; t < kPageTokens; ++t) {
      labels[t] = block[format.side == Side::kKeys ? key_label_byte(t) : value_label_byte(t)];
    }
  }
  int64_t label_offset(const PageFormat& format) const override {
    return static_cast<int64_t>(pattern::labels_offset(format));
  }

 private:
  void mine(const StagedPages& staged, Side side, int64_t tokens, int64_t points, int clusters,
            const VectorMemory& vectors) const {
    const DeviceScratch scratch = layer_.queue().take(mining_scratch_bytes(layer_.row_shape(), points));
    const KMeansOptions options;
    MiningRequest request = {};
    request.shape = layer_.row_shape();
    request.staging = staged.staging;
    request.tokens = tokens;
    request.points = points;
    request.clusters = clusters;
    request.max_steps = options.max_steps;
    request.tolerance = static_cast<float>(options.tolerance);
    request.seed = options.seed;
    request.vectors[static_cast<int>(side)] = vectors;
    request.scratch = scratch.as<void>();
    check(mine_patterns(request, layer_.queue().stream), "mining patterns");
  }

  void add_page_centres(const StagedPages& staged, Side side, int64_t pages, int first,
                        const VectorMemory& vectors) const {
    CentreRequest request = {};
    request.shape = layer_.row_shape();
    request.staging = staged.staging;
    request.page_count = pages;
    request.vectors[static_cast<int>(side)] = vectors;
    request.first_vector[static_cast<int>(side)] = first;
    check(add_centres(request, layer_.queue().stream), "adding patterns");
  }
};

class PatternSide : public CanonicalSide {
 public:
  PatternSide(const DeviceLayer& layer, Side side) : layer_(layer), side_(side) {}
  bool sealed_here() const override { return true; }
  void read_rows(const PageRun& run, float* out) const override {
    read_labelled(layer_, run, canonical_side(run.shape(), side_), out);
  }

 private:
  const DeviceLayer& layer_;
  const Side side_;
};

std::unique_ptr<PageFamily> family(const DeviceLayer& layer) {
  const LayerPlan& plan = layer.plan();
  std::vector<HeadLayout> layouts = fragment_layouts(plan);
  if (layouts.empty() || plan.codecs[1] != plan.codecs[0]) return nullptr;
  const int d = plan.attention.head_dim;
  if (!seals_pattern_pages(d) || !mines_patterns(d)) return nullptr;
  for (HeadLayout& layout : layouts) layout.labels = true;
  return std::make_unique<PatternFamily>(layer, std::move(layouts));
}

std::unique_ptr<CanonicalSide> side(const DeviceLayer& layer, Side side) {
  return std::make_unique<PatternSide>(layer, side);
}

}  // namespace

extern const DeviceCodec pattern_device;
const DeviceCodec pattern_device = {family, side};

}  // namespace kvasir::cuda
