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

#include "base/half.h"
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

class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  // What comes next on `waiting` waits for what is on `stream` now.
  void order(cudaStream_t stream, cudaStream_t waiting) {
    check(cudaEventRecord(event_, stream), "recording an event");
    check(cudaStreamWaitEvent(waiting, event_, 0), "waiting for an event");
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Words of this machine that the device writes.
class Flags {
 public:
  Flags() {
    void* memory = nullptr;
    check(cudaHostAlloc(&memory, 2 * sizeof(uint32_t), cudaHostAllocMapped), "flags");
    words_ = static_cast<uint32_t*>(memory);
    words_[0] = words_[1] = 0;
  }
  ~Flags() { cudaFreeHost(const_cast<uint32_t*>(words_)); }
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  uint32_t* there() const {
    void* pointer = nullptr;
    check(cudaHostGetDevicePointer(&pointer, const_cast<uint32_t*>(words_), 0), "flags");
    return static_cast<uint32_t*>(pointer);
  }
  bool take(int i) {
    if (words_[i] == 0) return false;
    words_[i] = 0;
    return true;
  }

 private:
  volatile uint32_t* words_ = nullptr;
};

// What kernels load 16 bytes at a time.
void check_address(const char* what, const void* address) {
  if (reinterpret_cast<uintptr_t>(address) % 16 == 0) return;
  throw Error(ErrorCode::kInvalidArgument, std::string(what) + " on the device must begin at a multiple of 16 bytes");
}

bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "asking a stream");
  return status != cudaStreamCaptureStatusNone;
}

// While somebody captures, this thread may still take memory and wait for other streams.
class RelaxedCapture {
 public:
  RelaxedCapture() { check(cudaThreadExchangeStreamCaptureMode(&mode_), "capturing"); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

size_t number_bytes(NumberType type) { return type == NumberType::kFloat32 ? sizeof(float) : sizeof(uint16_t); }

class CudaEngine : public Engine {
 public:
  // The device is current.
  CudaEngine() : arena_(std::make_shared<DeviceArena>(kDevice)) {}
  ~CudaEngine() override {
    try {
      const CurrentDevice current(kDevice);
      cudaDeviceSynchronize();  // streams of callers may still work on what goes now
    } catch (const Error&) {
      // The device is gone.
    }
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
    report_refused();
    if (!rows.on_device) check_rows(plan, rows);
    TokenRows stored = rows;
    std::vector<float> scaled;
    if (!plan.key_scaling.empty() && !rows.on_device) {
      scaled = scaled_keys(plan, rows);
      stored.sides[0] = scaled.data();
      stored.types[0] = ElementType::kFloat32;
    }
    const CurrentDevice current(kDevice);
    InputRows input = {};
    input.tokens = rows.tokens;
    input.refused = refused_.there();
    for (int side = 0; side < 2; ++side) input.types[side] = number_type(stored.types[side]);
    if (rows.on_device) {
      check_address("keys", rows.sides[0]);
      check_address("values", rows.sides[1]);
      for (int side = 0; side < 2; ++side) input.sides[side] = rows.sides[side];
      input.key_scaling = layer_of(plan).key_scaling();
      return std::make_unique<DeviceAppend>(*this, layer_of(plan), input, static_cast<cudaStream_t>(rows.stream));
    }
    const size_t elements = static_cast<size_t>(rows.tokens * plan.elements_per_token() / 2);
    const size_t bytes[2] = {elements * number_bytes(input.types[0]), elements * number_bytes(input.types[1])};
    DeviceScratch memory(*arena_, bytes[0] + bytes[1]);
    for (int side = 0; side < 2; ++side) {
      uint8_t* to = memory.as<uint8_t>() + (side == 1 ? bytes[0] : 0);
      upload(to, stored.sides[side], bytes[side]);
      input.sides[side] = to;
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
    report_refused();
    const CurrentDevice current(kDevice);
    const size_t bytes = query_elements(plan, request) * sizeof(float);
    const DeviceScratch queries(*arena_, bytes), outputs(*arena_, bytes);
    upload(queries.as<void>(), request.queries, bytes);
    Tiles tiles = {};
    {
      std::lock_guard<std::mutex> lock(mutex_);
      scale(plan, request, queries.as<void>(), queries.as<void>(), NumberType::kFloat32, stream_);
      tiles = enqueue(plan, request, queries.as<void>(), outputs.as<void>(), NumberType::kFloat32);
    }
    download(request.outputs, outputs.as<void>(), bytes);
    return tiles;
  }

  Tiles attend(const LayerPlan& plan, const AttentionRequest& request, const DeviceQueries& device) override {
    report_refused();
    const CurrentDevice current(kDevice);
    const NumberType type = number_type(device.type);
    const size_t bytes = query_elements(plan, request) * number_bytes(type);
    const auto stream = static_cast<cudaStream_t>(device.stream);
    check_address("queries", device.queries);
    check_address("outputs", device.outputs);
    std::lock_guard<std::mutex> lock(mutex_);
    if (capturing(stream)) return capture(plan, request, device, bytes);
    DeviceScratch scaled;
    const void* queries = device.queries;
    before_.order(stream, stream_);
    if (layer_of(plan).key_scaling()) {
      scaled = DeviceScratch(*arena_, bytes);
      scale(plan, request, device.queries, scaled.as<void>(), type, stream_);
      queries = scaled.as<void>();
    }
    const Tiles tiles = enqueue(plan, request, queries, device.outputs, type);
    after_.order(stream_, stream);
    return tiles;
  }

  void read_queries(const DeviceQueries& device, size_t count, float* out) override {
    const CurrentDevice current(kDevice);
    const NumberType type = number_type(device.type);
    std::vector<uint8_t> bytes(count * number_bytes(type));
    {
      std::lock_guard<std::mutex> lock(mutex_);
      before_.order(static_cast<cudaStream_t>(device.stream), stream_);
    }
    download(bytes.data(), device.queries, bytes.size());
    const auto* words = reinterpret_cast<const uint16_t*>(bytes.data());
    if (type == NumberType::kFloat32) std::memcpy(out, bytes.data(), bytes.size());
    for (size_t i = 0; i < count && type != NumberType::kFloat32; ++i) {
      out[i] = type == NumberType::kFloat16 ? half_to_float(words[i]) : bfloat_to_float(words[i]);
    }
  }

 private:
  // Rows that a caller's stream made: the engine's stream waits for it, and lets it go on at the end.
  class DeviceAppend : public CudaAppend {
   public:
    DeviceAppend(CudaEngine& engine, const DeviceLayer& layer, const InputRows& input, cudaStream_t stream)
        : CudaAppend(layer, *engine.arena_, engine.stream_, input, DeviceScratch()), engine_(engine), stream_(stream) {
      std::lock_guard<std::mutex> lock(engine.mutex_);
      engine.before_.order(stream, engine.stream_);
    }
    void fill(uint8_t* storage) override {
      CudaAppend::fill(storage);
      std::lock_guard<std::mutex> lock(engine_.mutex_);
      engine_.after_.order(engine_.stream_, stream_);
    }

   private:
    CudaEngine& engine_;
    const cudaStream_t stream_;
  };

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
    struct Captured {
      Fused fused;
      DeviceScratch queries;  // scaled, where the layer does that
    };
    std::map<int, Fused> fused;                    // by the most sequences
    std::vector<Captured> captured;                // graphs keep theirs
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

  static size_t query_elements(const LayerPlan& plan, const AttentionRequest& request) {
    return static_cast<size_t>(request.count) * request.tokens * plan.attention.query_heads *
           static_cast<size_t>(plan.attention.head_dim);
  }

  // What the device found in rows that it was given.
  void report_refused() {
    for (int side = 0; side < 2; ++side) {
      if (!refused_.take(side)) continue;
      throw Error(ErrorCode::kNotFinite,
                  std::string(side == 0 ? "keys" : "values") +
                      " of an earlier append from device memory held NaN, infinity or a magnitude above " +
                      std::to_string(static_cast<int>(kMaxMagnitude)) + "; those elements are 0 now");
    }
  }

  void scale(const LayerPlan& plan, const AttentionRequest& request, const void* from, void* to, NumberType type,
             cudaStream_t stream) {
    const AttentionLayer& attention = plan.attention;
    if (!layer_of(plan).key_scaling()) return;
    check(launch_scale_queries(from, to, type, int64_t{request.count} * request.tokens, attention.kv_heads,
                               attention.group(), attention.head_dim, layer_of(plan).key_scaling(), stream),
          "scaling queries");
  }

  // With the mutex held: workspaces and descriptions belong to one launch at a time.
  Tiles enqueue(const LayerPlan& plan, const AttentionRequest& request, const void* queries, void* outputs,
                NumberType type) {
    Layer& layer = *layers_[plan.index];
    const AttentionLayer& attention = plan.attention;
    const int64_t tiles = bring_up_to_date(layer, request);
    if (request.tokens == 1 && layer.device.family() == PageFamily::kFragments) {
      attend_fused(layer, fused_for(layer, request.count), request, queries, outputs, type, stream_);
      return {tiles, 0};
    }
    if (request.tokens == 1 && layer.device.family() == PageFamily::kCommVq) {
      attend_commvq(layer, request, queries, outputs, type);
      return {tiles, 0};
    }
    const size_t row = query_elements(plan, request) / request.count * number_bytes(type);
    for (int i = 0; i < request.count; ++i) {
      const SequenceView& view = request.sequences[i];
      PlainRequest plain = {};
      plain.kv_heads = attention.kv_heads;
      plain.group = attention.group();
      plain.head_dim = attention.head_dim;
      plain.tokens = request.tokens;
      plain.type = type;
      plain.queries = static_cast<const uint8_t*>(queries) + i * row;
      plain.outputs = static_cast<uint8_t*>(outputs) + i * row;
      plain.first_query = view.length - request.tokens;
      plain.sliding_window = attention.sliding_window;
      plain.scale = attention.softmax_scale;
      attend_plainly(layer.device, view, plain, *arena_, stream_);
    }
    return {tiles, request.tokens == 1 ? tiles : 0};
  }

  // Into a graph, on the caller's stream: with memory of its own, because nobody knows when the graph will run.
  Tiles capture(const LayerPlan& plan, const AttentionRequest& request, const DeviceQueries& device, size_t bytes) {
    Layer& layer = *layers_[plan.index];
    if (request.tokens != 1 || request.count > kInlineSequences || layer.device.family() != PageFamily::kFragments) {
      throw Error(ErrorCode::kInvalidArgument,
                  "only one query token of up to " + std::to_string(kInlineSequences) +
                      " sequences, in a layer that fused attention reads, can be captured in a graph");
    }
    const auto stream = static_cast<cudaStream_t>(device.stream);
    const NumberType type = number_type(device.type);
    const RelaxedCapture relaxed;
    const int64_t tiles = bring_up_to_date(layer, request);
    Layer::Captured captured;
    captured.fused = make_fused(layer, request.count);
    check(cudaStreamSynchronize(stream_), "making ready for a graph");
    const void* queries = device.queries;
    if (layer.device.key_scaling()) {
      captured.queries = DeviceScratch(*arena_, bytes);
      scale(plan, request, device.queries, captured.queries.as<void>(), type, stream);
      queries = captured.queries.as<void>();
    }
    attend_fused(layer, captured.fused, request, queries, device.outputs, type, stream);
    layer.captured.push_back(std::move(captured));
    return {tiles, 0};
  }

  // Returns the tiles of pages.
  int64_t bring_up_to_date(Layer& layer, const AttentionRequest& request) {
    int64_t tiles = 0;
    for (int i = 0; i < request.count; ++i) {
      const SequenceView& view = request.sequences[i];
      auto* state = static_cast<CudaLayerState*>(view.state);
      if (state->epoch() != layer.epoch) state->update(view, layer.epoch);
      tiles += view.page_count * layer.device.plan().attention.kv_heads;
    }
    return tiles;
  }

  Layer::Fused make_fused(Layer& layer, int sequences) {
    Layer::Fused fused;
    layer.device.plan_fused(sequences, &fused.plan);
    fused.workspace = DeviceScratch(*arena_, fused.plan.workspace_bytes);
    check(clear_workspace(fused.plan, fused.workspace.as<void>(), stream_), "clearing a workspace");
    return fused;
  }

  Layer::Fused& fused_for(Layer& layer, int sequences) {
    const int capacity = power_of_two(sequences);
    const auto found = layer.fused.find(capacity);
    if (found != layer.fused.end()) return found->second;
    return layer.fused.emplace(capacity, make_fused(layer, capacity)).first->second;
  }

  void attend_fused(const Layer& layer, const Layer::Fused& fused, const AttentionRequest& request, const void* queries,
                    void* outputs, NumberType type, cudaStream_t stream) {
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
    launch.workspace = fused.workspace.as<void>();
    check(launch_decode(fused.plan, launch, stream), "decode attention");
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
  Event before_, after_;  // with the mutex held
  Flags refused_;
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
