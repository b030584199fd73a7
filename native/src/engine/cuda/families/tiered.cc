// Codec tiered: key channels of several widths. Beside uniform values that attention has a kernel for, pages lie as
// kernels/cuda/tiered/layout.h has them; beside others, keys are parts of docs/format.md.
#include <cstddef>
#include <cstring>

#include "base/scratch.h"
#include "base/thread_pool.h"
#include "codecs/tiered/format.h"
#include "engine/cuda/families/fused.h"
#include "kernels/cuda/tiered/attend.h"
#include "kernels/cuda/tiered/rows.h"
#include "kernels/cuda/tiered/seal.h"

namespace kvasir::cuda {
namespace {

// Choosing tiers and writing keys, for both kinds of pages.
class TieredSealer {
 public:
  explicit TieredSealer(const DeviceLayer& layer) : layer_(layer) {}

  // Waits for the tiers of pages, 4 bytes a kv head, because memory for pages is taken by this machine: once for each
  // append that seals any. [page][kv_head]
  std::vector<TierCounts> choose(StagedPages& staged, const uint8_t* sums) const {
    const RowShape shape = layer_.row_shape();
    const DeviceQueue& queue = layer_.queue();
    staged.laid_out = queue.take(tier_choice_bytes(shape, staged.count));
    const DeviceScratch importance = queue.take(static_cast<size_t>(shape.kv_heads) * shape.head_dim * sizeof(float));
    TieredSealRequest request = this->request(staged);
    request.importance = importance.as<float>();
    check(launch_read_query_means(layer_.query_shape(), reinterpret_cast<const double*>(sums), layer_.key_scaling(),
                                  importance.as<float>(), queue.stream),
          "reading query sums");
    check(choose_tiers(request, choices(staged), queue.stream), "choosing tiers");
    std::vector<TierCounts> counts(static_cast<size_t>(staged.count) * shape.kv_heads);
    queue.download(counts.data(), choices(staged).counts, counts.size() * sizeof(TierCounts), "reading tiers");
    return counts;
  }

  // Sizes of the keys' parts, and what page_bytes(page, counts of its heads) gives beyond the page's shape.
  template <class Varying>
  bool lay_out(StagedPages& staged, const uint8_t* sums, PartHeads& heads, const Varying& varying) const {
    const std::vector<TierCounts> counts = choose(staged, sums);
    const int kv_heads = layer_.row_shape().kv_heads, parts = layer_.plan().shapes[0].parts();
    for (int64_t page = 0; page < staged.count; ++page) {
      const TierCounts* tiers = counts.data() + page * kv_heads;
      for (int head = 0; head < kv_heads; ++head) {
        heads.sizes[static_cast<size_t>(page * parts + head)] = static_cast<uint32_t>(canonical_bytes(tiers[head]));
      }
      heads.varying[static_cast<size_t>(page)] = varying(tiers);
    }
    return true;
  }
  size_t canonical_bytes(const TierCounts& tiers) const {
    return tiered::layout_of(layer_.format(Side::kKeys), tiers.n16, tiers.n4).bytes;
  }

  TieredSealRequest request(const StagedPages& staged) const {
    TieredSealRequest request = {};
    request.shape = layer_.row_shape();
    request.keys = layer_.format(Side::kKeys);
    request.values = layer_.format(Side::kValues);
    request.staging = staged.staging;
    request.page_count = staged.count;
    return request;
  }
  TierChoices choices(const StagedPages& staged) const {
    return tier_choices(layer_.row_shape(), staged.count, staged.laid_out.as<void>());
  }

 private:
  const DeviceLayer& layer_;
};

class TieredFamily : public PageFamily {
 public:
  explicit TieredFamily(const DeviceLayer& layer)
      : layer_(layer), sealer_(layer), format_(tiered_format(layer.format(Side::kKeys), layer.format(Side::kValues))) {}

  // Whether the device has the shared memory that attention takes: some of compute capability 8.6 and 8.9 have not.
  bool fits() const {
    TieredPlan made;
    return plan(1, &made) == cudaSuccess;
  }

  bool lay_out(StagedPages& staged, const uint8_t* sums, PartHeads& heads) const override {
    const int kv_heads = layer_.row_shape().kv_heads;
    const auto beyond_shape = [&](const TierCounts* tiers) {
      int64_t bytes = tiered_table_bytes(kv_heads) - static_cast<int64_t>(layer_.plan().shapes[0].bytes());
      for (int head = 0; head < kv_heads; ++head) {
        bytes += tiered_block(format_, tiers[head].n16, tiers[head].n4).bytes();
      }
      return bytes;
    };
    return sealer_.lay_out(staged, sums, heads, beyond_shape);
  }

  void seal(const StagedPages& staged, const NewPages& pages) const override {
    const std::vector<uint8_t*> addresses = pages.addresses();
    check(seal_tiered_pages(sealer_.request(staged), sealer_.choices(staged), addresses.data(), layer_.queue().stream),
          "sealing pages");
  }

  const uint8_t* part(const PageView& page, Side side, int kv_head) const override {
    const TieredPlace place = place_of(page, kv_head);
    const TieredBlock layout = tiered_block(format_, place);
    const size_t key_bytes = page.part_bytes(Side::kKeys, kv_head);
    const size_t value_bytes = page.part_bytes(Side::kValues, kv_head);
    const auto block_bytes = static_cast<size_t>(layout.bytes());
    auto* out = thread_scratch<TieredFamily, uint8_t>(key_bytes + value_bytes + block_bytes);
    uint8_t* block = out + key_bytes + value_bytes;
    layer_.queue().download(block, page.data + place.offset, block_bytes, "reading a page");
    std::memset(out, 0, key_bytes + value_bytes);
    unpack_tiered(page.format(Side::kKeys), page.format(Side::kValues), layout, block, out, out + key_bytes);
    return side == Side::kKeys ? out : out + key_bytes;
  }

  bool read_page(const PageView& page, uint8_t* out) const override {
    const PageShape& shape = *page.shape;
    std::memset(out, 0, page.bytes());
    std::memcpy(out, page.offsets, sizeof(uint32_t) * (shape.parts() + 1));
    const auto heads = static_cast<size_t>(shape.kv_heads);
    std::vector<TieredPlace> places(heads);
    layer_.queue().download(places.data(), page.data, heads * sizeof(TieredPlace), "reading a page");
    const size_t first = places[0].offset,
                 bytes =
                     places.back().offset + static_cast<size_t>(tiered_block(format_, places.back()).bytes()) - first;
    auto* blocks = thread_scratch<TieredFamily, uint8_t>(bytes);
    layer_.queue().download(blocks, page.data + first, bytes, "reading a page");
    ThreadPool::current().run(shape.kv_heads, [&](int head) {
      const TieredPlace& place = places[static_cast<size_t>(head)];
      unpack_tiered(page.format(Side::kKeys), page.format(Side::kValues), tiered_block(format_, place),
                    blocks + (place.offset - first), out + page.part_offset(Side::kKeys, head),
                    out + page.part_offset(Side::kValues, head));
    });
    return true;
  }

  int64_t stored_bytes(const PageView& page, const uint8_t* from) const override {
    int64_t bytes = tiered_table_bytes(page.shape->kv_heads);
    for (int head = 0; head < page.shape->kv_heads; ++head) bytes += block_of(page, from, head).bytes();
    return bytes;
  }

  void write_page(const NewPage& page, const uint8_t* from) const override {
    const PageView& view = *page.view;
    const int heads = view.shape->kv_heads;
    const auto bytes = static_cast<size_t>(stored_bytes(view, from));
    auto* copy = thread_scratch<TieredFamily, uint8_t>(bytes);
    std::memset(copy, 0, bytes);
    auto* places = reinterpret_cast<TieredPlace*>(copy);
    int64_t at = tiered_table_bytes(heads);
    for (int head = 0; head < heads; ++head) {
      const TieredBlock block = block_of(view, from, head);
      places[head].offset = static_cast<uint32_t>(at);
      places[head].n16 = static_cast<uint16_t>(block.n16);
      places[head].n4 = static_cast<uint16_t>(block.n4);
      at += block.bytes();
    }
    ThreadPool::current().run(heads, [&](int head) {
      pack_tiered(view.format(Side::kKeys), view.format(Side::kValues), from + view.part_offset(Side::kKeys, head),
                  from + view.part_offset(Side::kValues, head), copy + places[head].offset);
    });
    layer_.queue().upload(page.data, copy, bytes, "restoring a page");
  }

  const uint8_t* part_widths(const PageView& page, Side side, int kv_head) const override {
    if (side == Side::kValues) return part(page, side, kv_head);
    // A part begins with n16 and n4, and so does a place, behind its offset.
    auto* place = thread_scratch<TieredPlace, TieredPlace>(1);
    *place = place_of(page, kv_head);
    return reinterpret_cast<const uint8_t*>(place) + offsetof(TieredPlace, n16);
  }

  void read_rows(const PageRun& run, float* const (&out)[2]) const override {
    const DeviceQueue& queue = layer_.queue();
    const DeviceScratch list = queue.uploaded(run.addresses(), "uploading a list of pages");
    const TieredRows rows = {layer_.format(Side::kKeys),
                             layer_.format(Side::kValues),
                             layer_.row_shape().kv_heads,
                             list.as<const uint8_t*>(),
                             run.count(),
                             {out[0], out[1]}};
    check(launch_tiered_rows(rows, queue.stream), "unpacking pages");
  }

  bool attends(const SequenceView& view, const QueryRun& run) const override { return takes_steps(view, run); }
  bool caps() const override { return true; }
  void attend(const AttentionRequest& request, const QueryMemory& memory) override {
    const DeviceQueue& queue = layer_.queue();
    const int capacity = power_of_two(request.rows());
    const auto planned = launches_.at(queue, capacity, [&](TieredPlan* made) { return plan(capacity, made); });
    const DeviceScratch described = queue.uploaded(steps_of(request), "describing sequences");
    auto launch = launch_of<TieredRequest>(request, memory, planned.workspace);
    launch.sequences = described.as<DeviceSequence>();
    check(launch_tiered(planned.plan, launch, queue.stream), "attention over tiers");
  }

  bool captures(const AttentionRequest& request) const override { return follows_descriptions(layer_, request); }
  void capture(const AttentionRequest& request, const QueryMemory& memory, cudaStream_t stream) override {
    const DeviceQueue& queue = layer_.queue();
    Captured made = {{queue, [&](TieredPlan* planned) { return plan(request.count, planned); }}, {queue, request}};
    check(cudaStreamSynchronize(queue.stream), "making ready for a graph");
    made.sequences.gather(stream);
    const auto planned = made.launch.planned();
    auto launch = launch_of<TieredRequest>(request, memory, planned.workspace);
    launch.sequences = made.sequences.get();
    check(launch_tiered(planned.plan, launch, stream), "attention over tiers");
    captured_.push_back(std::move(made));
  }

 private:
  // Of a canonical page.
  TieredBlock block_of(const PageView& page, const uint8_t* from, int kv_head) const {
    return tiered_block(page.format(Side::kKeys), page.format(Side::kValues),
                        from + page.part_offset(Side::kKeys, kv_head));
  }

  // What a graph keeps.
  struct Captured {
    CapturedLaunch<TieredPlan> launch;
    GatheredSequences sequences;
  };

  cudaError_t plan(int sequences, TieredPlan* made) const {
    const AttentionLayer& attention = layer_.plan().attention;
    return plan_tiered({attention.head_dim, attention.kv_heads, attention.group(), format_.value_bits, sequences,
                        format_.key_group, format_.value_group, format_.key_grid, format_.value_grid},
                       made);
  }

  TieredPlace place_of(const PageView& page, int kv_head) const {
    TieredPlace place;
    layer_.queue().download(&place, page.data + sizeof place * static_cast<size_t>(kv_head), sizeof place,
                            "reading a page");
    return place;
  }

  const DeviceLayer& layer_;
  const TieredSealer sealer_;
  const TieredFormat format_;
  PlannedLaunches<TieredPlan, int> launches_;
  std::vector<Captured> captured_;
};

class TieredSide : public CanonicalSide {
 public:
  explicit TieredSide(const DeviceLayer& layer) : layer_(layer), sealer_(layer) {}

  bool lay_out(StagedPages& staged, const uint8_t* sums, PartHeads& heads) const override {
    const auto key_bytes = [&](const TierCounts* tiers) {
      int64_t bytes = 0;
      for (int head = 0; head < layer_.row_shape().kv_heads; ++head) {
        bytes += static_cast<int64_t>(sealer_.canonical_bytes(tiers[head]));
      }
      return bytes;
    };
    return sealer_.lay_out(staged, sums, heads, key_bytes);
  }

  void seal(const StagedPages& staged, const NewPages& pages) const override {
    const PageShape& shape = layer_.plan().shapes[0];
    std::vector<uint32_t> offsets;
    for (const NewPage& page : pages.pages) {
      offsets.insert(offsets.end(), page.view->offsets, page.view->offsets + shape.parts() + 1);
    }
    const DeviceScratch there = layer_.queue().uploaded(offsets, "uploading offsets");
    const PageTable table = {there.as<uint32_t>(), shape.parts(), static_cast<int>(shape.table_bytes())};
    const std::vector<uint8_t*> addresses = pages.addresses();
    check(seal_tiered_parts(sealer_.request(staged), sealer_.choices(staged), table, addresses.data(),
                            layer_.queue().stream),
          "sealing pages");
  }

  void read_rows(const PageRun& run, float* out) const override {
    const DeviceScratch list = layer_.queue().uploaded(run.addresses(), "uploading a list of pages");
    check(launch_tiered_key_rows(layer_.format(Side::kKeys), layer_.row_shape().kv_heads,
                                 {list.as<const uint8_t*>(), run.count(), 0, out}, layer_.queue().stream),
          "unpacking pages");
  }

 private:
  const DeviceLayer& layer_;
  const TieredSealer sealer_;
};

std::unique_ptr<PageFamily> family(const DeviceLayer& layer) {
  const PageFormat& values = layer.format(Side::kValues);
  const bool plain = values.elements == Elements::kCodes && !layer.plan().codecs[1]->grow;
  if (!plain || !tiered_supported(layer.format(Side::kKeys), values)) return nullptr;
  auto made = std::make_unique<TieredFamily>(layer);
  if (!made->fits()) return nullptr;
  return made;
}

std::unique_ptr<CanonicalSide> side(const DeviceLayer& layer, Side) { return std::make_unique<TieredSide>(layer); }

}  // namespace

extern const DeviceCodec tiered_device;
const DeviceCodec tiered_device = {family, side};

}  // namespace kvasir::cuda
