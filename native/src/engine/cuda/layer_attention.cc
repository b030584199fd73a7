#include "engine/cuda/layer_attention.h"

#include <algorithm>
#include <string>

#include "engine/cuda/plain_path.h"
#include "engine/cuda/status.h"
#include "engine/cuda/stream.h"
#include "kernels/cuda/commvq/types.h"
#include "kernels/cuda/rows/scale_queries.h"

namespace kvasir::cuda {
namespace {

int power_of_two(int64_t count) {
  int64_t power = 1;
  while (power < count) power *= 2;
  return static_cast<int>(power);
}

// What the requests of all fused kernels have.
template <class Launch>
Launch launch_of(const AttentionRequest& request, const QueryMemory& memory, const DeviceScratch& workspace) {
  Launch launch = {};
  launch.count = request.count * request.tokens;
  launch.queries = memory.queries;
  launch.outputs = memory.outputs;
  launch.type = memory.type;
  launch.softmax_scale = request.layer->softmax_scale;
  launch.workspace = workspace.as<void>();
  return launch;
}

const CudaLayerState& state_of(const SequenceView& view) { return static_cast<const CudaLayerState&>(*view.state); }

// Query tokens that are taken one by one; with more of them, decoding pages to memory once is less work
// (docs/performance.md, "Prompts on CUDA").
constexpr int kMostSteps = 64;
constexpr int64_t kMostSequences = 4096;  // of a fused kernel

// That a graph has room for beyond those of today: one is added every 128 tokens.
constexpr int kMoreVectors = 256;

// Of the longest side table.
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

// What each query token sees, sequence by sequence.
std::vector<DeviceSequence> steps_of(const AttentionRequest& request) {
  std::vector<DeviceSequence> steps;
  for (int i = 0; i < request.count; ++i) {
    const SequenceView& view = request.sequences[i];
    for (int newer = request.tokens - 1; newer >= 0; --newer) {
      steps.push_back(state_of(view).seen_before(view, newer));
    }
  }
  return steps;
}

}  // namespace

Engine::Tiles LayerAttention::run(const AttentionRequest& request, const QueryMemory& given, uint64_t epoch) {
  const int64_t tiles = bring_up_to_date(request, epoch);
  QueryMemory memory = given;
  DeviceScratch scaled;
  if (layer_.key_scaling()) {
    const size_t elements = static_cast<size_t>(request.count) * request.tokens * request.layer->query_heads *
                            static_cast<size_t>(request.layer->head_dim);
    scaled = DeviceScratch(arena_, elements * given.number_bytes());
    scale(request, given, scaled.as<void>(), stream_);
    memory.queries = scaled.as<void>();
  }
  if (layer_.family() == PageFamily::kCanonical || !takes_steps(request)) {
    attend_plain(request, memory);
    return {tiles, request.tokens > 1 ? 0 : tiles};
  }
  switch (layer_.family()) {
    case PageFamily::kCommVq:
      attend_commvq(request, memory);
      break;
    case PageFamily::kTiered:
      attend_tiered(request, memory);
      break;
    default:
      attend_fused(request, memory);
  }
  return {tiles, 0};
}

Engine::Tiles LayerAttention::capture(const AttentionRequest& request, const QueryMemory& given, uint64_t epoch,
                                      cudaStream_t stream) {
  if (request.tokens != 1 || request.count > kInlineSequences || layer_.family() != PageFamily::kFragments) {
    throw Error(ErrorCode::kInvalidArgument, "only one query token of up to " + std::to_string(kInlineSequences) +
                                                 " sequences, in a layer of head blocks, can be captured in a graph");
  }
  const RelaxedCapture relaxed;
  const int64_t tiles = bring_up_to_date(request, epoch);
  Captured captured;
  captured.fused = make_fused(request.count);
  if (layer_.labels()) captured.room = make_room(captured.fused.plan, most_vectors(request) + kMoreVectors);
  check(cudaStreamSynchronize(stream_), "making ready for a graph");
  QueryMemory memory = given;
  if (layer_.key_scaling()) {
    const size_t elements =
        static_cast<size_t>(request.count) * request.layer->query_heads * static_cast<size_t>(request.layer->head_dim);
    captured.queries = DeviceScratch(arena_, elements * given.number_bytes());
    scale(request, given, captured.queries.as<void>(), stream);
    memory.queries = captured.queries.as<void>();
  }
  std::vector<const DeviceSequence*> sequences;
  for (int i = 0; i < request.count; ++i) sequences.push_back(state_of(request.sequences[i]).description());
  attend_fused(captured.fused, captured.room, request, sequences, memory, stream);
  captured_.push_back(std::move(captured));
  return {tiles, 0};
}

// Returns the tiles of pages. Pages may have shrunk since their sequence was last described.
int64_t LayerAttention::bring_up_to_date(const AttentionRequest& request, uint64_t epoch) {
  int64_t tiles = 0;
  for (int i = 0; i < request.count; ++i) {
    const SequenceView& view = request.sequences[i];
    auto* state = static_cast<CudaLayerState*>(view.state);
    if (state->epoch() != epoch) state->update(view, epoch);
    tiles += view.page_count * request.layer->kv_heads;
  }
  return tiles;
}

void LayerAttention::scale(const AttentionRequest& request, const QueryMemory& memory, void* to, cudaStream_t stream) {
  const AttentionLayer& layer = *request.layer;
  check(launch_scale_queries(memory.queries, to, memory.type, int64_t{request.count} * request.tokens, layer.kv_heads,
                             layer.group(), layer.head_dim, layer_.key_scaling(), stream),
        "scaling queries");
}

DeviceScratch LayerAttention::describe(const std::vector<DeviceSequence>& sequences) {
  DeviceScratch described(arena_, sequences.size() * sizeof(DeviceSequence));
  check(cudaMemcpyAsync(described.as<void>(), sequences.data(), described.bytes(), cudaMemcpyHostToDevice, stream_),
        "describing sequences");
  return described;
}

template <class Plan, class Make>
LayerAttention::Launch<Plan> LayerAttention::make_launch(const Make& make) {
  Launch<Plan> launch;
  check(make(&launch.plan), "planning attention");
  launch.workspace = DeviceScratch(arena_, launch.plan.workspace_bytes);
  check(clear_workspace(launch.plan, launch.workspace.template as<void>(), stream_), "clearing a workspace");
  return launch;
}

// Whether fused kernels can take the tokens one by one, and should. Not CommVQ's: their tables are of whole numbers,
// and decoding gives the better scores.
bool LayerAttention::takes_steps(const AttentionRequest& request) const {
  if (request.tokens == 1) return true;
  if (request.tokens > kMostSteps || layer_.family() == PageFamily::kCommVq) return false;
  if (int64_t{request.count} * request.tokens > kMostSequences) return false;
  for (int i = 0; i < request.count; ++i) {
    const SequenceView& view = request.sequences[i];
    if (view.page_count > 0 && request.tokens > view.window) return false;
  }
  return true;
}

LayerAttention::Launch<AttendPlan> LayerAttention::make_fused(int sequences) {
  return make_launch<AttendPlan>([&](AttendPlan* plan) { return plan_attend(layer_.attend_shape(sequences), plan); });
}

void LayerAttention::attend_fused(const AttentionRequest& request, const QueryMemory& memory) {
  const int capacity = power_of_two(int64_t{request.count} * request.tokens);
  auto found = fused_.find(capacity);
  if (found == fused_.end()) found = fused_.emplace(capacity, make_fused(capacity)).first;
  std::vector<const DeviceSequence*> sequences;
  DeviceScratch described;
  if (request.tokens == 1) {
    for (int i = 0; i < request.count; ++i) sequences.push_back(state_of(request.sequences[i]).description());
  } else {
    described = describe(steps_of(request));
    for (int i = 0; i < request.count * request.tokens; ++i) sequences.push_back(described.as<DeviceSequence>() + i);
  }
  const Room room = make_room(found->second.plan, most_vectors(request));
  attend_fused(found->second, room, request, sequences, memory, stream_);
}

LayerAttention::Room LayerAttention::make_room(const AttendPlan& plan, int vectors) {
  if (vectors <= kNearVectors) return {};
  constexpr int kStep = 8 * kTileSize;  // not another size with every page
  const int whole = (vectors + kStep - 1) / kStep * kStep;
  return {DeviceScratch(arena_, vector_room_bytes(plan, whole)), whole};
}

void LayerAttention::attend_fused(const Launch<AttendPlan>& fused, const Room& room, const AttentionRequest& request,
                                  const std::vector<const DeviceSequence*>& sequences, const QueryMemory& memory,
                                  cudaStream_t stream) {
  auto launch = launch_of<AttendRequest>(request, memory, fused.workspace);
  launch.vector_room = room.memory.as<void>();
  launch.room_vectors = room.vectors;
  DeviceScratch list;
  launch.sequences = sequences.data();
  if (sequences.size() > kInlineSequences) {
    list = DeviceScratch(arena_, sequences.size() * sizeof(sequences[0]));
    check(cudaMemcpyAsync(list.as<void>(), sequences.data(), list.bytes(), cudaMemcpyHostToDevice, stream),
          "uploading a list of sequences");
    launch.sequences = list.as<const DeviceSequence*>();
    launch.listed_on_device = true;
  }
  launch.formats = layer_.page_kinds().data();
  launch.format_count = static_cast<int>(layer_.page_kinds().size());
  check(launch_attend(fused.plan, launch, stream), "attention");
}

void LayerAttention::attend_commvq(const AttentionRequest& request, const QueryMemory& memory) {
  int64_t pages = 0;
  size_t shift_count = 0;
  for (int i = 0; i < request.count; ++i) {
    pages += state_of(request.sequences[i]).latest().page_count;
    shift_count += static_cast<size_t>(request.sequences[i].shift_count);
  }
  const std::pair<int, int> capacity = {power_of_two(request.count), power_of_two(std::max<int64_t>(pages, 64))};
  auto found = commvq_.find(capacity);
  if (found == commvq_.end()) {
    const auto make = [&](CommVqPlan* plan) {
      return plan_commvq(layer_.commvq_shape(capacity.first, capacity.second), plan);
    };
    found = commvq_.emplace(capacity, make_launch<CommVqPlan>(make)).first;
  }

  const size_t sequence_bytes = sizeof(CommVqSequence) * static_cast<size_t>(request.count);
  const DeviceScratch described(arena_, sequence_bytes + sizeof(TokenShift) * shift_count);
  std::vector<uint8_t> bytes(described.bytes());
  auto* sequences = reinterpret_cast<CommVqSequence*>(bytes.data());
  auto* shifts = reinterpret_cast<TokenShift*>(bytes.data() + sequence_bytes);
  const auto* shifts_there = reinterpret_cast<const TokenShift*>(described.as<uint8_t>() + sequence_bytes);
  for (int i = 0; i < request.count; ++i) {
    const SequenceView& view = request.sequences[i];
    const DeviceSequence& known = state_of(view).latest();
    CommVqSequence& sequence = sequences[i];
    // Its pages have one shape: references are addresses.
    sequence.pages = reinterpret_cast<const uint8_t* const*>(known.pages);
    sequence.page_count = known.page_count;
    sequence.hidden_tokens = known.hidden_tokens;
    sequence.page_token = view.length - view.window - int64_t{known.page_count} * kPageTokens;
    sequence.window_token = view.length - view.window;
    sequence.shifts = view.shift_count > 0 ? shifts_there : nullptr;
    sequence.shift_count = view.shift_count;
    for (int s = 0; s < view.shift_count; ++s) *shifts++ = {view.shifts[s].first, view.shifts[s].offset};
    shifts_there += view.shift_count;
    sequence.sinks = known.sinks;
    sequence.window = known.window;
  }
  check(cudaMemcpyAsync(described.as<void>(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream_),
        "describing sequences");
  auto launch = launch_of<CommVqRequest>(request, memory, found->second.workspace);
  launch.sequences = described.as<CommVqSequence>();
  launch.key_tables = layer_.key_tables();
  launch.value_tables = layer_.plain_tables(Side::kValues);
  check(launch_commvq(found->second.plan, launch, stream_), "CommVQ's attention");
}

void LayerAttention::attend_tiered(const AttentionRequest& request, const QueryMemory& memory) {
  const int capacity = power_of_two(int64_t{request.count} * request.tokens);
  auto found = tiered_.find(capacity);
  if (found == tiered_.end()) {
    const auto make = [&](TieredPlan* plan) { return plan_tiered(layer_.tiered_shape(capacity), plan); };
    found = tiered_.emplace(capacity, make_launch<TieredPlan>(make)).first;
  }
  const DeviceScratch described = describe(steps_of(request));
  auto launch = launch_of<TieredRequest>(request, memory, found->second.workspace);
  launch.sequences = described.as<DeviceSequence>();
  check(launch_tiered(found->second.plan, launch, stream_), "attention over tiers");
}

void LayerAttention::attend_plain(const AttentionRequest& request, const QueryMemory& memory) {
  const AttentionLayer& layer = *request.layer;
  const size_t row = static_cast<size_t>(request.tokens) * layer.query_heads * static_cast<size_t>(layer.head_dim) *
                     memory.number_bytes();
  for (int i = 0; i < request.count; ++i) {
    const SequenceView& view = request.sequences[i];
    PromptRequest plain = {};
    plain.kv_heads = layer.kv_heads;
    plain.group = layer.group();
    plain.head_dim = layer.head_dim;
    plain.tokens = request.tokens;
    plain.type = memory.type;
    plain.queries = static_cast<const uint8_t*>(memory.queries) + i * row;
    plain.outputs = static_cast<uint8_t*>(memory.outputs) + i * row;
    plain.first_query = view.length - request.tokens;
    plain.sliding_window = layer.sliding_window;
    plain.scale = layer.softmax_scale;
    attend_plainly(layer_, view, plain, arena_, stream_);
  }
}

}  // namespace kvasir::cuda
