// The engine of one GPU. All work of a cache goes through one stream, in the order of calls, so memory that one call
// gives back may be taken by the next at once. Copies from memory of this machine have left it when they return.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/scratch.h"
#include "base/thread_pool.h"
#include "codecs/pattern/format.h"
#include "engine/cuda/cuda_append.h"
#include "engine/cuda/device_arena.h"
#include "engine/cuda/device_layer.h"
#include "engine/cuda/layer_state.h"
#include "engine/cuda/plain_path.h"
#include "engine/cuda/status.h"
#include "engine/engines.h"
#include "engine/host/host_engine.h"
#include "kernels/cuda/commvq_types.h"
#include "kernels/cuda/convert.h"
#include "kernels/cuda/pattern_layout.h"
#include "kernels/cuda/shrink.h"

namespace kvasir::cuda {
namespace {

constexpr int kDevice = 0;
constexpr int kLeastCapability = 80;

NumberType number_type(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return NumberType::kFloat32;
    case ElementType::kFloat16:
      return NumberType::kFloat16;
    default:
      return NumberType::kBFloat16;
  }
}

int power_of_two(int64_t count) {
  int64_t power = 1;
  while (power < count) power *= 2;
  return static_cast<int>(power);
}

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class CudaEngine : public Engine {
 public:
  // The device is current.
  CudaEngine() : arena_(std::make_shared<DeviceArena>(kDevice)), refused_(*arena_, 2 * sizeof(uint32_t)) {}
  ~CudaEngine() override {
    const CurrentDevice current(kDevice);
    cudaStreamSynchronize(stream_);
  }

  const char* name() const override { return "cuda"; }
  std::shared_ptr<Arena> arena() override { return arena_; }

  void prepare(const std::vector<LayerPlan>& plans) override {
    const CurrentDevice current(kDevice);
    for (const LayerPlan& plan : plans) layers_.push_back(std::make_unique<Layer>(plan, *arena_, stream_));
  }

  // 16-bit rows ------------------------------------------------------------------------------------------------

  int64_t row_bytes(const LayerPlan& plan) const override { return layer_of(plan).row_bytes(); }

  void clear_rows(const LayerPlan& plan, uint8_t* storage) override {
    const CurrentDevice current(kDevice);
    check(cudaMemsetAsync(storage, 0, static_cast<size_t>(row_bytes(plan)), stream_), "clearing rows");
  }

  void read_rows(const LayerPlan& plan, const uint8_t* storage, Side side, int kv_head, int first, int count,
                 float* out) override {
    const CurrentDevice current(kDevice);
    const DeviceLayer& layer = layer_of(plan);
    const DeviceScratch rows(*arena_, row_floats(plan, count) * sizeof(float));
    check(cuda::read_rows({1, plan.attention.head_dim}, head_tiles(layer, storage, kv_head), layer.tile_row(first),
                          count, float_rows(plan, side, rows), stream_),
          "reading rows");
    download(out, rows.as<void>(), row_floats(plan, count) * sizeof(float));
  }

  void write_rows(const LayerPlan& plan, uint8_t* storage, Side side, int kv_head, int first, int count,
                  const float* rows) override {
    const CurrentDevice current(kDevice);
    const DeviceLayer& layer = layer_of(plan);
    const DeviceScratch device(*arena_, row_floats(plan, count) * sizeof(float));
    upload(device.as<void>(), rows, row_floats(plan, count) * sizeof(float));
    check(restore_rows({1, plan.attention.head_dim}, float_rows(plan, side, device), count,
                       head_tiles(layer, storage, kv_head), layer.tile_row(first), stream_),
          "writing rows");
  }

  void copy(const uint8_t* from, uint8_t* to, size_t bytes) override {
    const CurrentDevice current(kDevice);
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copying rows");
  }

  // Appending --------------------------------------------------------------------------------------------------

  std::unique_ptr<Append> begin_append(const LayerPlan& plan, const TokenRows& rows) override {
    check_rows(plan, rows);
    TokenRows stored = rows;
    std::vector<float> scaled;
    if (!plan.key_scaling.empty()) {
      scaled = scaled_keys(plan, rows);
      stored.sides[0] = scaled.data();
      stored.types[0] = ElementType::kFloat32;
    }
    const CurrentDevice current(kDevice);
    const size_t elements = static_cast<size_t>(rows.tokens * plan.elements_per_token() / 2);
    size_t bytes[2];
    for (int side = 0; side < 2; ++side) {
      bytes[side] = elements * (stored.types[side] == ElementType::kFloat32 ? sizeof(float) : sizeof(uint16_t));
    }
    DeviceScratch memory(*arena_, bytes[0] + bytes[1]);
    InputRows input = {};
    input.tokens = rows.tokens;
    input.refused = refused_.as<uint32_t>();
    for (int side = 0; side < 2; ++side) {
      uint8_t* to = memory.as<uint8_t>() + (side == 1 ? bytes[0] : 0);
      upload(to, stored.sides[side], bytes[side]);
      input.sides[side] = to;
      input.types[side] = number_type(stored.types[side]);
    }
    return std::make_unique<CudaAppend>(layer_of(plan), *arena_, stream_, input, std::move(memory));
  }

  std::unique_ptr<LayerState> make_state(const LayerPlan& plan) override {
    return std::make_unique<CudaLayerState>(layer_of(plan), *arena_, stream_);
  }

  void reserve(LayerState* state, int64_t pages) override {
    const CurrentDevice current(kDevice);
    static_cast<CudaLayerState*>(state)->reserve(pages);
  }

  void update(const LayerPlan& plan, const SequenceView& view, LayerState* state) override {
    if (!state) return;
    const CurrentDevice current(kDevice);
    static_cast<CudaLayerState*>(state)->update(view, layers_[plan.index]->epoch);
  }

  // Pages ------------------------------------------------------------------------------------------------------

  const uint8_t* part(const LayerPlan& plan, const PageView& page, Side side, int kv_head) override {
    const CurrentDevice current(kDevice);
    const DeviceLayer& layer = layer_of(plan);
    struct Part;
    const size_t bytes = page.part_bytes(side, kv_head);
    if (layer.family() != PageFamily::kFragments) {
      auto* out = thread_scratch<Part, uint8_t>(bytes);
      download(out, page.part(side, kv_head), bytes);
      return out;
    }
    const HeadLayout layout = layer.head_layout(*page.shape);
    const size_t block_bytes = static_cast<size_t>(layer.label_bytes()) + layout.bytes();
    auto* out = thread_scratch<Part, uint8_t>(bytes + block_bytes);
    uint8_t* block = out + bytes;
    download(block, page.data + static_cast<size_t>(kv_head) * block_bytes, block_bytes);
    std::memset(out, 0, bytes);
    (side == Side::kKeys ? unpack_keys : unpack_values)(layout, block + layer.label_bytes(), out);
    if (layer.labels()) {
      uint8_t* labels = out + pattern::labels_offset(page.format(side));
      for (int t = 0; t < kPageTokens; ++t) {
        labels[t] = block[side == Side::kKeys ? key_label_byte(t) : value_label_byte(t)];
      }
    }
    return out;
  }

  void shrink(const LayerPlan& plan, const std::vector<ShrinkingPage>& pages) override {
    const CurrentDevice current(kDevice);
    const DeviceLayer& layer = layer_of(plan);
    layers_[plan.index]->epoch += 1;
    if (pages.empty()) return;
    const PageShape& from = *pages[0].from;
    const PageShape& to = *pages[0].to;
    if (from.varies() || layer.kind(Side::kKeys) != SideKind::kCodes || layer.kind(Side::kValues) != SideKind::kCodes) {
      for (const ShrinkingPage& page : pages) shrink_here(plan, page);
      return;
    }
    std::vector<ShrinkPage> list;
    for (const ShrinkingPage& page : pages) list.push_back({page.data, page.data});
    ShrinkRequest request = {};
    request.shape = layer.row_shape();
    for (int side = 0; side < 2; ++side) {
      request.from[side] = layer.sides(from)[side];
      request.to[side] = layer.sides(to)[side];
    }
    request.pages = list.data();
    request.page_count = static_cast<int64_t>(list.size());
    check(shrink_pages(request, stream_), "shrinking pages");
  }

  // Attention --------------------------------------------------------------------------------------------------

  Tiles attend(const LayerPlan& plan, const AttentionRequest& request) override {
    const CurrentDevice current(kDevice);
    const AttentionLayer& attention = plan.attention;
    const size_t elements = static_cast<size_t>(request.count) * request.tokens * attention.query_heads *
                            static_cast<size_t>(attention.head_dim);
    const DeviceScratch queries(*arena_, elements * sizeof(float));
    const DeviceScratch outputs(*arena_, elements * sizeof(float));
    upload(queries.as<void>(), request.queries, elements * sizeof(float));
    const Tiles tiles = enqueue(plan, request, queries.as<void>(), outputs.as<void>(), NumberType::kFloat32);
    download(request.outputs, outputs.as<void>(), elements * sizeof(float));
    return tiles;
  }

 private:
  // One layer, and what its launches share.
  struct Layer {
    Layer(const LayerPlan& plan, DeviceArena& arena, cudaStream_t stream) : device(plan, arena, stream) {}
    DeviceLayer device;
    std::atomic<uint64_t> epoch{0};  // shrinks: descriptions made before are out of date
    struct Fused {
      DecodePlan plan;
      DeviceScratch workspace;
    };
    struct CommVq {
      CommVqPlan plan;
      DeviceScratch workspace;
    };
    std::map<int, Fused> fused;                    // by the most sequences
    std::map<std::pair<int, int>, CommVq> commvq;  // and by the most pages
  };

  DeviceLayer& layer_of(const LayerPlan& plan) const { return layers_[plan.index]->device; }

  void upload(void* to, const void* from, size_t bytes) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "copying to the device");
  }
  // Waits for all that was asked for before.
  void download(void* to, const void* from, size_t bytes) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "copying from the device");
    check(cudaStreamSynchronize(stream_), "copying from the device");
  }

  static size_t row_floats(const LayerPlan& plan, int count) {
    return static_cast<size_t>(count) * plan.attention.head_dim;
  }
  static RowTiles head_tiles(const DeviceLayer& layer, const uint8_t* storage, int kv_head) {
    return layer.tiles(const_cast<uint8_t*>(storage) + layer.head_stride() * kv_head);
  }
  static FloatRows float_rows(const LayerPlan& plan, Side side, const DeviceScratch& rows) {
    FloatRows result = {{nullptr, nullptr}, plan.attention.head_dim, 0};
    result.sides[static_cast<int>(side)] = rows.as<float>();
    return result;
  }

  // Through memory of this machine: for layers that mix what shrinks with what the device cannot.
  void shrink_here(const LayerPlan& plan, const ShrinkingPage& page) {
    const size_t bytes = page.offsets ? page.offsets[page.from->parts()] : page.from->bytes();
    std::vector<uint8_t> copy(bytes);
    download(copy.data(), page.data, bytes);
    ShrinkingPage here = page;
    here.data = copy.data();
    const size_t left = shrink_page(plan, here);
    if (page.offsets) std::memcpy(copy.data(), page.offsets, sizeof(uint32_t) * (page.to->parts() + 1));
    upload(page.data, copy.data(), left);
  }

  Tiles enqueue(const LayerPlan& plan, const AttentionRequest& request, void* queries, void* outputs, NumberType type) {
    // Workspaces and descriptions belong to one launch at a time.
    std::lock_guard<std::mutex> lock(mutex_);
    Layer& layer = *layers_[plan.index];
    const AttentionLayer& attention = plan.attention;
    if (layer.device.key_scaling()) {
      check(launch_scale_queries(queries, queries, type, int64_t{request.count} * request.tokens, attention.kv_heads,
                                 attention.group(), attention.head_dim, layer.device.key_scaling(), stream_),
            "scaling queries");
    }
    int64_t tiles = 0;
    for (int i = 0; i < request.count; ++i) {
      const SequenceView& view = request.sequences[i];
      auto* state = static_cast<CudaLayerState*>(view.state);
      if (state->epoch() != layer.epoch) state->update(view, layer.epoch);
      tiles += view.page_count * attention.kv_heads;
    }
    if (request.tokens == 1 && layer.device.family() == PageFamily::kFragments) {
      attend_fused(layer, request, queries, outputs, type);
      return {tiles, 0};
    }
    if (request.tokens == 1 && layer.device.family() == PageFamily::kCommVq) {
      attend_commvq(layer, request, queries, outputs, type);
      return {tiles, 0};
    }
    const size_t row = static_cast<size_t>(request.tokens) * attention.query_heads * attention.head_dim *
                       (type == NumberType::kFloat32 ? sizeof(float) : sizeof(uint16_t));
    for (int i = 0; i < request.count; ++i) {
      const SequenceView& view = request.sequences[i];
      PlainRequest plain = {};
      plain.kv_heads = attention.kv_heads;
      plain.group = attention.group();
      plain.head_dim = attention.head_dim;
      plain.tokens = request.tokens;
      plain.type = type;
      plain.queries = static_cast<uint8_t*>(queries) + i * row;
      plain.outputs = static_cast<uint8_t*>(outputs) + i * row;
      plain.first_query = view.length - request.tokens;
      plain.sliding_window = attention.sliding_window;
      plain.scale = attention.softmax_scale;
      attend_plainly(layer.device, view, plain, *arena_, stream_);
    }
    return {tiles, request.tokens == 1 ? tiles : 0};
  }

  void attend_fused(Layer& layer, const AttentionRequest& request, const void* queries, void* outputs,
                    NumberType type) {
    const int capacity = power_of_two(request.count);
    auto found = layer.fused.find(capacity);
    if (found == layer.fused.end()) {
      Layer::Fused fused;
      layer.device.plan_fused(capacity, &fused.plan);
      fused.workspace = DeviceScratch(*arena_, fused.plan.workspace_bytes);
      check(clear_workspace(fused.plan, fused.workspace.as<void>(), stream_), "clearing a workspace");
      found = layer.fused.emplace(capacity, std::move(fused)).first;
    }
    std::vector<const DecodeSequence*> sequences;
    for (int i = 0; i < request.count; ++i) {
      sequences.push_back(static_cast<const CudaLayerState*>(request.sequences[i].state)->description());
    }
    DecodeRequest launch = {};
    DeviceScratch list;
    launch.sequences = sequences.data();
    if (request.count > kInlineSequences) {
      list = DeviceScratch(*arena_, sequences.size() * sizeof(sequences[0]));
      upload(list.as<void>(), sequences.data(), list.bytes());
      launch.sequences = list.as<const DecodeSequence*>();
      launch.listed_on_device = true;
    }
    launch.count = request.count;
    launch.queries = queries;
    launch.outputs = outputs;
    launch.type = type;
    launch.softmax_scale = layer.device.plan().attention.softmax_scale;
    launch.formats = layer.device.page_kinds().data();
    launch.format_count = static_cast<int>(layer.device.page_kinds().size());
    launch.workspace = found->second.workspace.as<void>();
    check(launch_decode(found->second.plan, launch, stream_), "decode attention");
  }

  void attend_commvq(Layer& layer, const AttentionRequest& request, const void* queries, void* outputs,
                     NumberType type) {
    int64_t pages = 0;
    size_t shift_count = 0;
    for (int i = 0; i < request.count; ++i) {
      pages += static_cast<const CudaLayerState*>(request.sequences[i].state)->latest().page_count;
      shift_count += static_cast<size_t>(request.sequences[i].shift_count);
    }
    const std::pair<int, int> capacity = {power_of_two(request.count), power_of_two(std::max<int64_t>(pages, 64))};
    auto found = layer.commvq.find(capacity);
    if (found == layer.commvq.end()) {
      Layer::CommVq commvq;
      check(plan_commvq(layer.device.commvq_shape(capacity.first, capacity.second), &commvq.plan),
            "planning CommVQ's attention");
      commvq.workspace = DeviceScratch(*arena_, commvq.plan.workspace_bytes);
      check(clear_workspace(commvq.plan, commvq.workspace.as<void>(), stream_), "clearing a workspace");
      found = layer.commvq.emplace(capacity, std::move(commvq)).first;
    }
    const size_t sequence_bytes = sizeof(CommVqSequence) * static_cast<size_t>(request.count);
    const DeviceScratch described(*arena_, sequence_bytes + sizeof(TokenShift) * shift_count);
    auto* shifts_there = reinterpret_cast<TokenShift*>(described.as<uint8_t>() + sequence_bytes);
    std::vector<CommVqSequence> sequences;
    std::vector<TokenShift> shifts;
    for (int i = 0; i < request.count; ++i) {
      const SequenceView& view = request.sequences[i];
      const auto* state = static_cast<const CudaLayerState*>(view.state);
      const DecodeSequence& known = state->latest();
      CommVqSequence sequence = {};
      const int64_t skipped = view.page_count - known.page_count;
      sequence.pages = state->page_addresses() + skipped;
      sequence.page_count = known.page_count;
      sequence.hidden_tokens = known.hidden_tokens;
      sequence.page_token = view.length - view.window - int64_t{known.page_count} * kPageTokens;
      sequence.window_token = view.length - view.window;
      sequence.shift_count = view.shift_count;
      if (view.shift_count > 0) sequence.shifts = shifts_there + shifts.size();
      for (int s = 0; s < view.shift_count; ++s) shifts.push_back({view.shifts[s].first, view.shifts[s].offset});
      sequence.sinks = known.sinks;
      sequence.window = known.window;
      sequences.push_back(sequence);
    }
    upload(described.as<void>(), sequences.data(), sequence_bytes);
    if (!shifts.empty()) upload(shifts_there, shifts.data(), sizeof(TokenShift) * shifts.size());
    CommVqRequest launch = {};
    launch.sequences = described.as<CommVqSequence>();
    launch.count = request.count;
    launch.queries = queries;
    launch.outputs = outputs;
    launch.type = type;
    launch.softmax_scale = layer.device.plan().attention.softmax_scale;
    launch.key_tables = layer.device.key_tables();
    launch.value_tables = layer.device.plain_tables(Side::kValues);
    launch.workspace = found->second.workspace.as<void>();
    check(launch_commvq(found->second.plan, launch, stream_), "CommVQ's attention");
  }

  const std::shared_ptr<DeviceArena> arena_;
  const Stream stream_;
  const DeviceScratch refused_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::mutex mutex_;
};

std::string obstacle() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    cudaGetLastError();
    return std::string("the CUDA driver says ") + cudaGetErrorName(status) + ", " + cudaGetErrorString(status);
  }
  if (count == 0) return "there is no CUDA device";
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, kDevice);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, kDevice);
  if (10 * major + minor < kLeastCapability) {
    return "the device has compute capability " + std::to_string(major) + "." + std::to_string(minor) +
           ", and 8.0 is needed";
  }
  return "";
}

std::unique_ptr<Engine> make() {
  const CurrentDevice current(kDevice);
  return std::make_unique<CudaEngine>();
}

}  // namespace
}  // namespace kvasir::cuda

namespace kvasir {

const DeviceKind& cuda_device() {
  static const DeviceKind kind = {"cuda", "NVIDIA GPUs, from compute capability 8.0 on", cuda::obstacle, cuda::make};
  return kind;
}

}  // namespace kvasir
