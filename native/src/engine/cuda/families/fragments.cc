#include "engine/cuda/families/fragments.h"

#include <algorithm>
#include <cstring>

#include "base/scratch.h"
#include "kernels/cuda/layout/pack.h"

namespace kvasir::cuda {
namespace {

// Vectors that a graph has room for beyond those of today: one is added every 128 tokens.
constexpr int kMoreVectors = 256;

// Those of the longest side table.
int most_vectors(const AttentionRequest& request) {
  int most = 0;
  for (int i = 0; i < request.count; ++i) {
    const DeviceSequence& sequence = state_of(request.sequences[i]).latest();
    for (const VectorTable& table : {sequence.key_vectors, sequence.value_vectors}) {
      most = std::max(most, table.fixed + table.added);
    }
  }
  return most;
}

}  // namespace

std::vector<HeadLayout> fragment_layouts(const LayerPlan& plan) {
  std::vector<HeadLayout> layouts;
  for (const PageShape& shape : plan.shapes) {
    const PageFormat &keys = shape.formats[0], &values = shape.formats[1];
    if (plan.turns || !has_fragments(keys) || !has_fragments(values)) return {};
    layouts.push_back(head_layout(keys, values));
  }
  return layouts;
}

FragmentsFamily::FragmentsFamily(const DeviceLayer& layer, std::vector<HeadLayout> layouts)
    : layer_(layer), layouts_(std::move(layouts)) {
  for (size_t level = 0; level < layouts_.size(); ++level) {
    const PageShape& shape = layer.plan().shapes[level];
    sides_.emplace_back();
    fragment_sides(shape.formats[0], shape.formats[1], sides_.back().data());
    for (SideFormat& side : sides_.back()) {
      side.offset += layouts_[level].label_bytes();
      side.stride += layouts_[level].label_bytes();
    }
  }
}

void FragmentsFamily::seal(const StagedPages& staged, const NewPages& pages) const {
  seal_codes(
      layer_, staged, pages, [&](const PageShape& shape) { return sides(shape); },
      [](const NewPage& page) { return page.data; });
}

const uint8_t* FragmentsFamily::part(const PageView& page, Side side, int kv_head) const {
  const HeadLayout& block_layout = layout(*page.shape);
  const size_t bytes = page.part_bytes(side, kv_head), block_bytes = static_cast<size_t>(block_layout.bytes());
  auto* out = thread_scratch<FragmentsFamily, uint8_t>(bytes + block_bytes);
  uint8_t* block = out + bytes;
  layer_.queue().download(block, page.data + kv_head * block_bytes, block_bytes, "reading a page");
  std::memset(out, 0, bytes);
  (side == Side::kKeys ? unpack_keys : unpack_values)(block_layout, block + block_layout.label_bytes(), out);
  finish_part(page.format(side), block, out);
  return out;
}

std::optional<RepackShape> FragmentsFamily::repack(const PageShape& shape) const {
  const PageFormat &keys = shape.formats[0], &values = shape.formats[1];
  return RepackShape{layout(shape),
                     shape.kv_heads,
                     static_cast<int64_t>(keys.page_bytes),
                     static_cast<int64_t>(values.page_bytes),
                     label_offset(keys),
                     label_offset(values)};
}

void FragmentsFamily::write_page(const NewPage& page, const uint8_t* from) const {
  const DeviceQueue& queue = layer_.queue();
  const DeviceScratch canonical = queue.uploaded(from, page.view->bytes(), "restoring a page");
  const RepackPage one = {canonical.as<uint8_t>(), page.data};
  check(pack_pages(*repack(*page.view->shape), &one, 1, queue.stream), "restoring a page");
}

bool FragmentsFamily::shrink(const std::vector<ShrinkingPage>& pages) const {
  shrink_codes(layer_, pages, sides(*pages[0].from), sides(*pages[0].to));
  return true;
}

void FragmentsFamily::read_half_rows(const PageRun& run, Side side, const HalfRows& out) const {
  read_code_halves(layer_, run, sides(run.shape())[static_cast<size_t>(side)], out);
}

void FragmentsFamily::read_rows(const PageRun& run, float* const (&out)[2]) const {
  for (size_t side = 0; side < 2; ++side) {
    if (out[side]) read_codes(layer_, run, sides(run.shape())[side], out[side]);
  }
}

cudaError_t FragmentsFamily::plan(int sequences, AttendPlan* plan) const {
  const AttentionLayer& attention = layer_.plan().attention;
  return plan_attend({attention.head_dim, attention.kv_heads, attention.group(), sequences, layouts_[0].labels}, plan);
}

FragmentsFamily::Room FragmentsFamily::make_room(const AttendPlan& plan, int vectors) const {
  if (vectors <= kNearVectors) return {};
  constexpr int kStep = 8 * kTileSize;  // not another size with every page
  const int whole = (vectors + kStep - 1) / kStep * kStep;
  return {layer_.queue().take(vector_room_bytes(plan, whole)), whole};
}

void FragmentsFamily::attend(const AttentionRequest& request, const QueryMemory& memory) {
  const DeviceQueue& queue = layer_.queue();
  const int count = static_cast<int>(request.rows()), capacity = power_of_two(count);
  const auto planned = launches_.at(queue, capacity, [&](AttendPlan* made) { return plan(capacity, made); });
  std::vector<const DeviceSequence*> sequences;
  DeviceScratch described;
  if (follows_descriptions(layer_, request)) {
    sequences = descriptions(request);
  } else {
    described = queue.uploaded(steps_of(request), "describing sequences");
    for (int i = 0; i < count; ++i) sequences.push_back(described.as<DeviceSequence>() + i);
  }
  launch(planned, make_room(planned.plan, most_vectors(request)), request, sequences, listed(sequences), memory, false,
         queue.stream);
}

bool FragmentsFamily::captures(const AttentionRequest& request) const { return follows_descriptions(layer_, request); }

void FragmentsFamily::capture(const AttentionRequest& request, const QueryMemory& memory, cudaStream_t stream) {
  Captured made = {{layer_.queue(), [&](AttendPlan* plan) { return this->plan(request.count, plan); }}, {}, {}};
  const PlannedLaunch<AttendPlan> planned = made.launch.planned();
  if (layouts_[0].labels) made.room = make_room(planned.plan, most_vectors(request) + kMoreVectors);
  made.list = listed(descriptions(request));
  check(cudaStreamSynchronize(layer_.queue().stream), "making ready for a graph");
  // Descriptions change between launches of a graph.
  launch(planned, made.room, request, descriptions(request), made.list, memory, true, stream);
  captured_.push_back(std::move(made));
}

DeviceScratch FragmentsFamily::listed(const std::vector<const DeviceSequence*>& sequences) const {
  if (sequences.size() <= kInlineSequences) return {};
  return layer_.queue().uploaded(sequences, "uploading a list of sequences");
}

void FragmentsFamily::launch(const PlannedLaunch<AttendPlan>& planned, const Room& room,
                             const AttentionRequest& request, const std::vector<const DeviceSequence*>& sequences,
                             const DeviceScratch& list, const QueryMemory& memory, bool settled,
                             cudaStream_t stream) const {
  auto launch = launch_of<AttendRequest>(request, memory, planned.workspace);
  launch.settled = settled;
  launch.vector_room = room.memory.as<void>();
  launch.room_vectors = room.vectors;
  launch.sequences = sequences.data();
  if (list) {
    launch.sequences = list.as<const DeviceSequence*>();
    launch.listed_on_device = true;
  }
  launch.formats = layouts_.data();
  launch.format_count = static_cast<int>(layouts_.size());
  check(launch_attend(planned.plan, launch, stream), "attention");
}

// The codecs of float16 elements and min-max codes alone.
static std::unique_ptr<PageFamily> fragments_family(const DeviceLayer& layer) {
  const LayerPlan& plan = layer.plan();
  std::vector<HeadLayout> layouts = fragment_layouts(plan);
  // A codec with a side table stores more than its codes.
  if (layouts.empty() || plan.codecs[0]->grow || plan.codecs[1]->grow) return nullptr;
  return std::make_unique<FragmentsFamily>(layer, std::move(layouts));
}

extern const DeviceCodec f16_device, uniform_device, progressive_device;
const DeviceCodec f16_device = {fragments_family, codes_side};
const DeviceCodec uniform_device = {fragments_family, codes_side};
const DeviceCodec progressive_device = {fragments_family, codes_side};

}  // namespace kvasir::cuda
