#include "kernels/cuda/attend/attend.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/attend/instance.h"
#include "kernels/cuda/attend/unit_tag.h"
#include "kernels/cuda/layout/labels.h"
#include "kernels/cuda/primitives/shared_memory.h"

namespace kvasir::cuda {
namespace {

constexpr int kMaxSequences = 4096;
constexpr int kMaxSlots = 3;
constexpr int kShortBytes = 4 << 20;  // of one block, below which how it ends matters more than that all blocks work
constexpr int kMaxCached = 64;        // sequences whose description a block keeps in shared memory

const AttendInstance* instance_for(int head_dim, int tiles) {
  switch (head_dim) {
    case 64:
      return tiles == 1 ? &attend_64_4 : &attend_64_8;
    case 96:
      return tiles == 1 ? &attend_96_4 : nullptr;
    case 128:
      return tiles == 1 ? &attend_128_4 : &attend_128_8;
    case 256:
      return tiles == 1 ? &attend_256_4 : nullptr;
    default:
      return nullptr;
  }
}

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

bool any_width(int bits) { return bits_supported(bits) || bits == kWideBits; }

bool supported(const HeadLayout& layout) {
  const bool values = any_width(layout.value_bits);
  if (layout.token_keys) {
    const int bits = layout.key_bits;
    return values && (bits == 2 || bits == 4 || bits == 8 || bits == kWideBits);
  }
  return values && any_width(layout.key_bits);
}

bool plain(const HeadLayout& layout) {
  return !layout.labels && !layout.token_keys && layout.key_bits != kWideBits && layout.value_bits != kWideBits;
}

PageKinds kinds_of(HeadLayout layout) {
  const bool two_bits = layout.key_bits == 2 && layout.value_bits == 2;
  if (plain(layout)) return two_bits ? PageKinds::kTwoBits : PageKinds::kPlain;
  layout.labels = false;
  return plain(layout) && two_bits ? PageKinds::kLabelledTwoBits : PageKinds::kAny;
}

// The fewest that have both.
PageKinds joined(PageKinds a, PageKinds b) {
  const auto [some, more] = std::minmax(a, b);
  return some == PageKinds::kPlain && more == PageKinds::kLabelledTwoBits ? PageKinds::kAny : some;
}

PageEntry entry_of(const HeadLayout& layout) {
  uint32_t flags = 0;
  if (layout.token_keys) flags |= Tag::kTokenKeys;
  if (layout.key_cells) flags |= Tag::kKeyCells;
  if (layout.value_cells) flags |= Tag::kValueCells;
  if (layout.labels) {
    flags |= Tag::kLabels;  // which take the place in a slot that a part could join in
  } else {
    flags |= join_flags(layout.key().groups(), layout.key_parts(), layout.value().groups(), layout.value_parts());
  }
  return {static_cast<uint32_t>(layout.key_bits | layout.value_bits << 8) | flags,
          layout.bytes(),
          static_cast<int16_t>(layout.key().parameter_bytes()),
          static_cast<int16_t>(layout.value().parameter_bytes()),
          static_cast<int16_t>(layout.key().groups()),
          static_cast<int16_t>(layout.value().groups())};
}

// Parts of VectorRoom.
size_t term_bytes(const AttendPlan& plan, int vectors) {
  const size_t segments = static_cast<size_t>(plan.shape.sequences) * plan.shape.kv_heads * plan.row_blocks;
  return aligned(segments * (static_cast<size_t>(vectors) + 1) * 4 * plan.tiles * sizeof(float));
}
size_t sum_bytes(const AttendPlan& plan, int vectors) {
  int consumers = 0;
  for (const AttendBlock& block : plan.block_of) consumers = std::max(consumers, block.consumers);
  const size_t warps = static_cast<size_t>(plan.blocks) * consumers;
  return aligned(warps * static_cast<size_t>(vectors) * 4 * plan.tiles * sizeof(float));
}

// Two slots a ring are needed to overlap copies with arithmetic at all; more warps come before more slots.
AttendBlock block_for(const AttendInstance& instance, PageKinds pages, int cached, const AttendShape& shape, int most) {
  AttendBlock block = {instance.max_consumers(pages), kMaxSlots, 0};
  const auto shared = [&](int slots) { return instance.shared_bytes(pages, block.consumers, slots, cached, shape); };
  while (block.consumers > 1 && shared(2) > most) --block.consumers;
  while (block.slots > 1 && shared(block.slots) > most) --block.slots;
  block.shared_bytes = shared(block.slots);
  return block.shared_bytes <= most ? block : AttendBlock{};
}

}  // namespace

cudaError_t plan_attend(const AttendShape& shape, AttendPlan* plan) {
  if (!head_dim_supported(shape.head_dim) || shape.kv_heads < 1 || shape.group < 1) return cudaErrorInvalidValue;
  if (shape.sequences < 1 || shape.sequences > kMaxSequences) return cudaErrorInvalidValue;
  int device = 0, processors = 0, most_shared = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) error = most_shared_memory(&most_shared);
  if (error != cudaSuccess) return error;

  AttendPlan made = {};
  made.shape = shape;
  made.tiles = shape.group > 4 && instance_for(shape.head_dim, 2) != nullptr ? 2 : 1;
  made.row_blocks = (shape.group + 4 * made.tiles - 1) / (4 * made.tiles);
  made.blocks = processors;
  const AttendInstance& instance = *instance_for(shape.head_dim, made.tiles);
  made.cached = std::min(shape.sequences, shape.labels ? kMaxCached / 2 : kMaxCached);
  int largest = 0;
  for (int i = 0; i < kPageKinds; ++i) {
    const auto pages = static_cast<PageKinds>(i);
    made.block_of[i] = block_for(instance, pages, made.cached, shape, most_shared);
    if (made.block_of[i].consumers == 0) return cudaErrorInvalidValue;
    largest = std::max(largest, made.block_of[i].shared_bytes);
  }
  error = instance.prepare(largest, &made.overlaps);
  if (error != cudaSuccess) return error;

  const size_t partial = sizeof(float) * instance.partial_floats;
  const size_t segments = static_cast<size_t>(shape.sequences) * shape.kv_heads * made.row_blocks;
  made.partials_offset = aligned(segments * sizeof(uint32_t));
  made.workspace_bytes = made.partials_offset + aligned(partial * made.blocks * instance.block_partials);
  *plan = made;
  return cudaSuccess;
}

cudaError_t clear_workspace(const AttendPlan& plan, void* workspace, cudaStream_t stream) {
  return cudaMemsetAsync(workspace, 0, counter_bytes(plan), stream);
}

size_t vector_room_bytes(const AttendPlan& plan, int vectors) {
  return term_bytes(plan, vectors) + sum_bytes(plan, vectors);
}

cudaError_t launch_attend(const AttendPlan& plan, const AttendRequest& request, cudaStream_t stream) {
  if (request.count < 0 || request.count > plan.shape.sequences) return cudaErrorInvalidValue;
  if (request.format_count < 1 || request.format_count > kMaxPageFormats) return cudaErrorInvalidValue;
  if (request.count > kInlineSequences && !request.listed_on_device) return cudaErrorInvalidValue;
  if (request.count == 0) return cudaSuccess;
  AttendParams params = {};
  uint8_t* const workspace = static_cast<uint8_t*>(request.workspace);
  if (request.listed_on_device) {
    params.listed_sequences = request.sequences;
  } else {
    std::copy_n(request.sequences, request.count, params.inline_sequences);
  }
  params.queries = request.queries;
  params.outputs = request.outputs;
  params.arrivals = reinterpret_cast<uint32_t*>(workspace);
  params.block_partials = reinterpret_cast<float*>(workspace + plan.partials_offset);
  params.count = request.count;
  params.kv_heads = plan.shape.kv_heads;
  params.group = plan.shape.group;
  params.row_blocks = plan.row_blocks;
  params.cached = plan.cached;
  params.labels = plan.shape.labels;
  params.type = request.type;
  params.scale = request.softmax_scale * static_cast<float>(M_LOG2E);
  params.cap = request.soft_cap * static_cast<float>(M_LOG2E);
  params.ends = request.ends;
  params.settled = request.settled;
  params.pages = request.soft_cap != 0.0f       ? PageKinds::kAny
                 : request.softmax_scale < 0.0f ? PageKinds::kPlain
                                                : PageKinds::kTwoBits;  // which looks for the greatest sums
  // Queries of eight heads are loaded in vectors there.
  if (plan.tiles > 1 && reinterpret_cast<uintptr_t>(request.queries) % 16 != 0) {
    params.pages = joined(params.pages, PageKinds::kPlain);
  }
  int largest = 1;
  for (int i = 0; i < request.format_count; ++i) {
    const HeadLayout& layout = request.formats[i];
    if (layout.head_dim != plan.shape.head_dim || !supported(layout)) return cudaErrorInvalidValue;
    if (layout.labels && !plan.shape.labels) return cudaErrorInvalidValue;
    params.pages = joined(params.pages, kinds_of(layout));
    params.formats[i] = entry_of(layout);
    largest = std::max(largest, params.formats[i].head_bytes);
  }
  params.short_units = kShortBytes / largest;
  params.even = EvenDivision::of(request.count * plan.shape.kv_heads * plan.row_blocks, plan.blocks);
  const AttendInstance& instance = *instance_for(plan.shape.head_dim, plan.tiles);
  if (plan.shape.labels && request.room_vectors > kNearVectors) {
    if (request.vector_room == nullptr || request.room_vectors % kTileSize != 0) return cudaErrorInvalidValue;
    auto* const room = static_cast<uint8_t*>(request.vector_room);
    params.room = {reinterpret_cast<float*>(room),
                   reinterpret_cast<float*>(room + term_bytes(plan, request.room_vectors)), request.room_vectors};
    const cudaError_t error = instance.launch_terms(params, plan.overlaps, stream);
    if (error != cudaSuccess) return error;
    if (params.pages == PageKinds::kLabelledTwoBits) params.pages = PageKinds::kFarTwoBits;
  }
  const AttendBlock& block = plan.block_of[static_cast<int>(params.pages)];
  params.consumers = block.consumers;
  params.slots = block.slots;
  return instance.launch(params, plan.blocks, block.shared_bytes, plan.overlaps, stream);
}

}  // namespace kvasir::cuda
