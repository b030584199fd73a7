// The engine of one GPU. All work of a cache goes through one stream, in the order of calls, so memory that one call
// gives back may be taken by the next at once. Copies from memory of this machine have left it when they return.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/checks.h"
#include "engine/cuda/caller_memory.h"
#include "engine/cuda/cuda_append.h"
#include "engine/cuda/dense_queries.h"
#include "engine/cuda/device_code.h"
#include "engine/cuda/extension.h"
#include "engine/cuda/families/family.h"
#include "engine/cuda/image_transfers.h"
#include "engine/cuda/layer_attention.h"
#include "engine/cuda/layer_state.h"
#include "engine/cuda/stream.h"
#include "engine/engines.h"
#include "engine/query_sums.h"
#include "engine/taken_rows.h"
#include "kernels/cuda/rows/query_sums.h"

namespace kvasir::cuda {
namespace {

constexpr int kLeastCapability = 80;

class CudaEngine : public Engine {
 public:
  // The device is current.
  CudaEngine() : arena_(std::make_shared<DeviceArena>(kDevice)) {}
  ~CudaEngine() override {
    try {
      const CurrentDevice current(kDevice);
      const RelaxedCapture relaxed;
      cudaStreamSynchronize(stream_);
      if (has_graphs_) cudaDeviceSynchronize();  // streams of callers may still work on what goes now
      cudaGetLastError();
    } catch (const Error&) {
      // The device is gone.
    }
  }

  const char* name() const override { return "cuda"; }
  std::shared_ptr<Arena> arena() override { return arena_; }

  void prepare(const std::vector<LayerPlan>& plans) override {
    const CurrentDevice current(kDevice);
    for (const LayerPlan& plan : plans) layers_.push_back(std::make_unique<Layer>(plan, queue_));
  }

  // 16-bit rows ------------------------------------------------------------------------------------------------

  void clear_rows(const LayerPlan& plan, uint8_t* block) override {
    const CurrentDevice current(kDevice);
    check(cudaMemsetAsync(block, 0, static_cast<size_t>(plan.row_block_bytes()), stream_), "clearing rows");
  }

  void read_rows(const LayerPlan& plan, const uint8_t* const* blocks, Side side, int kv_head, int64_t first,
                 int64_t count, float* out) override {
    const CurrentDevice current(kDevice);
    const DeviceScratch rows = queue_.take(row_floats(plan, count) * sizeof(float));
    check(cuda::read_rows({1, plan.attention.head_dim}, head_blocks(plan, blocks, kv_head, first + count).data(), first,
                          count, float_rows(plan, side, rows), stream_),
          "reading rows");
    queue_.download(out, rows.as<void>(), rows.bytes(), "reading rows");
  }

  std::unique_ptr<ReturningRows> take_back(const LayerPlan& plan, int64_t count,
                                           std::vector<float> (&&rows)[2]) override {
    class DeviceRows : public ReturningRows {
     public:
      DeviceRows(const DeviceLayer& layer, int64_t count, const std::vector<float> (&rows)[2])
          : layer_(layer), count_(count) {
        for (int side = 0; side < 2; ++side) sides_[side] = layer.queue().uploaded(rows[side], "taking rows back");
      }
      void write(uint8_t* const* blocks) override {
        const CurrentDevice current(kDevice);
        const RowShape shape = layer_.row_shape();
        const FloatRows from = {
            {sides_[0].as<float>(), sides_[1].as<float>()}, shape.head_dim, count_ * shape.head_dim};
        check(restore_rows(shape, from, count_, blocks, 0, layer_.queue().stream), "writing rows");
      }

     private:
      const DeviceLayer& layer_;
      const int64_t count_;
      DeviceScratch sides_[2];
    };
    const CurrentDevice current(kDevice);
    return std::make_unique<DeviceRows>(layer_of(plan), count, rows);
  }

  void copy_rows(const LayerPlan& plan, const RowCopy* copies, int count) override {
    static_assert(RowCopies::kMost == kMaxMaskedTokens, "all guesses in one launch");
    const CurrentDevice current(kDevice);
    RowCopies list = {};
    list.count = count;
    for (int i = 0; i < count; ++i) {
      list.from[i] = copies[i].from;
      list.to[i] = copies[i].to;
      list.from_rows[i] = static_cast<uint8_t>(copies[i].from_row);
      list.to_rows[i] = static_cast<uint8_t>(copies[i].to_row);
    }
    check(cuda::copy_rows(layer_of(plan).row_shape(), list, stream_), "keeping guesses");
  }

  void copy(const uint8_t* from, uint8_t* to, size_t bytes) override {
    const CurrentDevice current(kDevice);
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copying rows");
  }

  // Queries ----------------------------------------------------------------------------------------------------

  void clear_queries(const LayerPlan& plan, uint8_t* sums) override {
    const CurrentDevice current(kDevice);
    check(launch_clear_queries(layer_of(plan).query_shape(), reinterpret_cast<double*>(sums), stream_),
          "clearing query sums");
  }

  void add_queries(const LayerPlan& plan, uint8_t* const* sums, const std::vector<QueryRun>& runs,
                   const float* queries) override {
    const CurrentDevice current(kDevice);
    const DeviceScratch there =
        queue_.uploaded(queries, query_elements(plan, rows_of(runs)) * sizeof(float), "uploading queries");
    observe(plan, sums, runs, there.as<void>(), ElementType::kFloat32, stream_);
  }

  // attend has seen to it that the engine's stream comes after the queries; the caller may write to them after this.
  void add_queries(const LayerPlan& plan, uint8_t* const* sums, const std::vector<QueryRun>& runs,
                   const DeviceQueries& device) override {
    const CurrentDevice current(kDevice);
    const auto stream = static_cast<cudaStream_t>(device.stream);
    DenseQueries dense(queue_, plan.attention, rows_of(runs), device);
    if (cuda::capturing(stream)) {
      // Into the graph that attention went to, which took dense queries alone. The sums may be new.
      const RelaxedCapture relaxed;
      check(cudaStreamSynchronize(stream_), "making ready for a graph");
      return observe(plan, sums, runs, dense.queries(), dense.type(), stream);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    try {
      dense.gather();
      observe(plan, sums, runs, dense.queries(), dense.type(), stream_);
      after_.order(stream_, stream);
    } catch (...) {
      after_.order_anyway(stream_, stream);
      throw;
    }
  }

  void read_query_means(const LayerPlan& plan, const uint8_t* sums, float* out) override {
    const CurrentDevice current(kDevice);
    const size_t bytes = static_cast<size_t>(QuerySums::channels(plan.attention)) * sizeof(float);
    const DeviceScratch means = queue_.take(bytes);
    check(launch_read_query_means(layer_of(plan).query_shape(), reinterpret_cast<const double*>(sums), nullptr,
                                  means.as<float>(), stream_),
          "reading query sums");
    queue_.download(out, means.as<void>(), bytes, "reading query sums");
  }

  void settle_queries(const LayerPlan& plan, uint8_t* sums) override {
    const CurrentDevice current(kDevice);
    check(launch_settle_queries(layer_of(plan).query_shape(), reinterpret_cast<double*>(sums), stream_),
          "settling queries");
  }

  // Appending --------------------------------------------------------------------------------------------------

  std::unique_ptr<Appends> begin_appends(const LayerPlan& plan, const TokenRows& rows,
                                         const std::vector<int64_t>& counts) override {
    if (rows.tokens > 0) report_refused();
    if (rows.tokens > INT32_MAX) refuse(std::to_string(rows.tokens) + " tokens in one append to a device");
    const CurrentDevice current(kDevice);
    const Layer& layer = *layers_[plan.index];
    if (rows.on_device) {
      return std::make_unique<DeviceAppends>(*this, layer, input_of(layer.device, rows, refused_.there()), counts,
                                             static_cast<cudaStream_t>(rows.stream));
    }
    InputRows input = {};
    input.tokens = rows.tokens;
    input.refused = refused_.there();
    const TakenRows taken(plan, rows);
    const size_t bytes = taken.elements() * sizeof(uint16_t);
    // Both sides: the values follow the keys.
    DeviceScratch memory = queue_.uploaded(taken.side(Side::kKeys), 2 * bytes, "uploading rows");
    for (int side = 0; side < 2; ++side) {
      input.sides[side] = memory.as<uint8_t>() + side * bytes;
      input.types[side] = ElementType::kFloat16;
    }
    return std::make_unique<HostAppends>(*this, layer, input, std::move(memory), counts);
  }

  std::unique_ptr<Extension> extend(int count, void* stream) override {
    report_refused();
    if (capturing(stream)) refuse("sequences are extended before a graph runs, not in one");
    const CurrentDevice current(kDevice);
    return std::make_unique<DeviceExtension>(*this, count, static_cast<cudaStream_t>(stream));
  }

  bool capturing(void* stream) const override { return cuda::capturing(static_cast<cudaStream_t>(stream)); }

  void capture_append(const LayerPlan& plan, const TokenRows& rows, const std::vector<SequenceView>& views) override {
    const CurrentDevice current(kDevice);
    const RelaxedCapture relaxed;
    has_graphs_ = true;
    const Layer& layer = *layers_[plan.index];
    const InputRows input = input_of(layer.device, rows, refused_.there());
    std::vector<const DeviceSequence*> sequences;
    for (const SequenceView& view : views) {
      sequences.push_back(static_cast<const CudaLayerState&>(*view.state).description());
    }
    DeviceScratch list = queue_.uploaded(sequences, "uploading a list of sequences");
    check(cudaStreamSynchronize(stream_), "making ready for a graph");
    check(append_newest_rows(layer.device.row_shape(), input, list.as<const DeviceSequence*>(), rows.tokens,
                             static_cast<cudaStream_t>(rows.stream)),
          "appending rows");
    std::lock_guard<std::mutex> lock(mutex_);
    captured_.push_back(std::move(list));
  }

  std::unique_ptr<LayerState> make_state(const LayerPlan& plan) override {
    return std::make_unique<CudaLayerState>(layer_of(plan));
  }

  void reserve(LayerState* state, int64_t pages, const SideTable (&tables)[2]) override {
    const CurrentDevice current(kDevice);
    static_cast<CudaLayerState*>(state)->reserve(pages, tables);
  }

  void update(const LayerPlan& plan, const SequenceView& view, LayerState* state) override {
    if (!state) return;
    const CurrentDevice current(kDevice);
    static_cast<CudaLayerState*>(state)->update(view, layers_[plan.index]->epoch);
    let_graphs_follow();
  }

  // Pages ------------------------------------------------------------------------------------------------------

  const uint8_t* part(const LayerPlan& plan, const PageView& page, Side side, int kv_head) override {
    const CurrentDevice current(kDevice);
    return layer_of(plan).family().part(page, side, kv_head);
  }

  const uint8_t* part_widths(const LayerPlan& plan, const PageView& page, Side side, int kv_head) override {
    const CurrentDevice current(kDevice);
    return layer_of(plan).family().part_widths(page, side, kv_head);
  }

  void shrink(const LayerPlan& plan, const std::vector<ShrinkingPage>& pages) override {
    const CurrentDevice current(kDevice);
    layers_[plan.index]->epoch += 1;
    if (pages.empty() || layer_of(plan).family().shrink(pages)) return;
    shrink_here(plan, pages);
  }

  // Saving and restoring ---------------------------------------------------------------------------------------

  void download(const uint8_t* from, uint8_t* to, size_t bytes) override {
    const CurrentDevice current(kDevice);
    queue_.download(to, from, bytes, "saving");
  }

  void upload(const uint8_t* from, uint8_t* to, size_t bytes) override {
    const CurrentDevice current(kDevice);
    queue_.upload(to, from, bytes, "restoring");
  }

  void read_halves(const std::vector<ImageRows>& rows) override {
    const CurrentDevice current(kDevice);
    images_.read_halves(rows);
  }

  void write_halves(const std::vector<ImageRows>& rows) override {
    const CurrentDevice current(kDevice);
    images_.write_halves(rows, refused_.there());
  }

  std::vector<uint32_t> read_pages(const std::vector<PageOut>& pages) override {
    const CurrentDevice current(kDevice);
    return images_.read_pages(pages);
  }

  std::shared_ptr<uint8_t> image_memory(size_t bytes) override {
    const CurrentDevice current(kDevice);
    const auto memory = std::make_shared<PinnedMemory>();
    memory->reserve(bytes);
    return {memory, memory->as<uint8_t>()};
  }

  std::unique_ptr<PagesIn> pages_in() override {
    const CurrentDevice current(kDevice);
    return images_.pages_in();
  }

  int64_t stored_bytes(const LayerPlan& plan, const PageView& page, const uint8_t* from) override {
    return layer_of(plan).family().stored_bytes(page, from);
  }

  void write_page(const LayerPlan& plan, const NewPage& page, const uint8_t* from) override {
    const CurrentDevice current(kDevice);
    layer_of(plan).family().write_page(page, from);
  }

  // Attention --------------------------------------------------------------------------------------------------

  Tiles attend(const LayerPlan& plan, const AttentionRequest& request) override {
    report_refused();
    const CurrentDevice current(kDevice);
    const size_t bytes = query_elements(plan, request.rows()) * sizeof(float);
    const size_t output_bytes = output_elements(plan, request.rows()) * sizeof(float);
    const size_t sum_bytes = static_cast<size_t>(request.rows()) * plan.attention.query_heads * sizeof(float);
    const DeviceScratch queries = queue_.uploaded(request.queries, bytes, "uploading queries");
    const DeviceScratch outputs = queue_.take(output_bytes);
    const DeviceScratch sums = request.log_sums ? queue_.take(sum_bytes) : DeviceScratch();
    Layer& layer = *layers_[plan.source];
    Tiles tiles = {};
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const QueryMemory memory = {queries.as<void>(), outputs.as<void>(), ElementType::kFloat32,
                                  ends_of(plan, request, sums.as<float>())};
      tiles = layer.attention.run(request, memory, layer.epoch);
    }
    queue_.download(request.outputs, outputs.as<void>(), output_bytes, "reading outputs");
    if (sums) queue_.download(request.log_sums, sums.as<void>(), sum_bytes, "reading log-sums");
    return tiles;
  }

  Tiles attend(const LayerPlan& plan, const AttentionRequest& request, const DeviceQueries& device) override {
    report_refused();
    check_reachable("queries", device.queries.data);
    check_reachable("outputs", device.outputs.data);
    if (device.log_sums) check_reachable("log-sums", device.log_sums);
    DenseQueries dense(queue_, plan.attention, request.rows(), device);
    if (dense.in_place()) {
      const size_t each = element_bytes(dense.type());
      require_apart(device, query_elements(plan, request.rows()) * each, output_elements(plan, request.rows()) * each);
    }
    const CurrentDevice current(kDevice);
    const auto stream = static_cast<cudaStream_t>(device.stream);
    Layer& layer = *layers_[plan.source];
    const auto memory = [&] {
      return QueryMemory{dense.queries(), dense.outputs(), dense.type(), ends_of(plan, request, device.log_sums)};
    };
    if (cuda::capturing(stream)) {
      if (!dense.in_place()) refuse("only dense queries and outputs of one type can be captured in a graph");
      has_graphs_ = true;
      std::lock_guard<std::mutex> lock(mutex_);
      return layer.attention.capture(request, memory(), layer.epoch, stream);
    }
    Turn turn(*this, stream);
    Tiles tiles = {};
    {
      std::lock_guard<std::mutex> lock(mutex_);
      dense.gather();
      tiles = layer.attention.run(request, memory(), layer.epoch);
      dense.scatter();
    }
    turn.end();
    return tiles;
  }

 private:
  struct Layer {
    Layer(const LayerPlan& plan, const DeviceQueue& queue) : device(plan, queue), attention(device) {}
    DeviceLayer device;
    LayerAttention attention;
    std::atomic<uint64_t> epoch{0};  // shrinks: descriptions made before are out of date
  };

  // Graphs run on streams of callers, which a call without one cannot put in order: where there are any, what the
  // device is told has reached it when the call returns.
  void let_graphs_follow() const {
    if (has_graphs_) check(cudaStreamSynchronize(stream_), "telling graphs of sequences");
  }

  // Rows of this machine.
  class HostAppends : public CudaAppends {
   public:
    HostAppends(const CudaEngine& engine, const Layer& layer, const InputRows& input, DeviceScratch memory,
                const std::vector<int64_t>& counts)
        : CudaAppends(layer.device, layer.epoch, input, std::move(memory), counts), engine_(engine) {}
    void finish(const SequenceView* views) override {
      CudaAppends::finish(views);
      engine_.let_graphs_follow();
    }

   private:
    const CudaEngine& engine_;
  };

  // The engine's stream works after what a caller's stream does now, and before what it does next: also where that work
  // ends half way, since what was begun still reads and writes the caller's memory.
  class Turn {
   public:
    Turn(CudaEngine& engine, cudaStream_t caller) : engine_(engine), caller_(caller) {
      std::lock_guard<std::mutex> lock(engine.mutex_);
      engine.before_.order(caller, engine.stream_);
    }
    ~Turn() {
      if (ended_) return;
      try {
        const CurrentDevice current(kDevice);  // whose null stream the caller's may be
        std::lock_guard<std::mutex> lock(engine_.mutex_);
        engine_.after_.order_anyway(engine_.stream_, caller_);
      } catch (const Error&) {
        // The device is gone.
      }
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    void end() {
      const CurrentDevice current(kDevice);
      std::lock_guard<std::mutex> lock(engine_.mutex_);
      engine_.after_.order(engine_.stream_, caller_);
      ended_ = true;
    }

   private:
    CudaEngine& engine_;
    const cudaStream_t caller_;
    bool ended_ = false;
  };

  // Rows that a caller's stream made.
  class DeviceAppends : public CudaAppends {
   public:
    DeviceAppends(CudaEngine& engine, const Layer& layer, const InputRows& input, const std::vector<int64_t>& counts,
                  cudaStream_t stream)
        : CudaAppends(layer.device, layer.epoch, input, DeviceScratch(), counts), turn_(engine, stream) {}
    void finish(const SequenceView* views) override {
      CudaAppends::finish(views);
      turn_.end();
    }

   private:
    Turn turn_;
  };

  class DeviceExtension : public CudaExtension {
   public:
    DeviceExtension(CudaEngine& engine, int count, cudaStream_t stream)
        : CudaExtension(engine.queue_, engine.extended_layers(), count), turn_(engine, stream) {}
    void finish() override {
      const CurrentDevice current(kDevice);
      CudaExtension::finish();
      turn_.end();
    }

   private:
    Turn turn_;
  };

  std::vector<CudaExtension::Layer> extended_layers() const {
    std::vector<CudaExtension::Layer> layers;
    for (const auto& layer : layers_) layers.push_back({&layer->device, &layer->epoch});
    return layers;
  }

  DeviceLayer& layer_of(const LayerPlan& plan) const { return layers_[plan.index]->device; }

  static size_t row_floats(const LayerPlan& plan, int64_t count) {
    return static_cast<size_t>(count) * plan.attention.head_dim;
  }
  // The row tiles of one kv head in the blocks of so many rows.
  static std::vector<uint8_t*> head_blocks(const LayerPlan& plan, const uint8_t* const* blocks, int kv_head,
                                           int64_t rows) {
    std::vector<uint8_t*> tiles;
    for (int64_t i = 0; i * kTileSize < rows; ++i) {
      tiles.push_back(const_cast<uint8_t*>(blocks[i]) + RowTileLayout{plan.attention.head_dim}.bytes() * kv_head);
    }
    return tiles;
  }
  static FloatRows float_rows(const LayerPlan& plan, Side side, const DeviceScratch& rows) {
    FloatRows result = {{nullptr, nullptr}, plan.attention.head_dim, 0};
    result.sides[static_cast<int>(side)] = rows.as<float>();
    return result;
  }

  // Through memory of this machine: for layers that mix what shrinks with what the device cannot. That memory is there
  // before the first page changes: all of them shrink, or none.
  void shrink_here(const LayerPlan& plan, const std::vector<ShrinkingPage>& pages) {
    const auto bytes_of = [](const ShrinkingPage& page) {
      return page.offsets ? page.offsets[page.from->parts()] : page.from->bytes();
    };
    size_t most = 0;
    for (const ShrinkingPage& page : pages) most = std::max(most, bytes_of(page));
    std::vector<uint8_t> copy(most);
    for (const ShrinkingPage& page : pages) {
      queue_.download(copy.data(), page.data, bytes_of(page), "shrinking pages");
      ShrinkingPage here = page;
      here.data = copy.data();
      const size_t left = shrink_page(plan, here);
      if (page.offsets) std::memcpy(copy.data(), page.offsets, sizeof(uint32_t) * (page.to->parts() + 1));
      queue_.upload(page.data, copy.data(), left, "shrinking pages");
    }
  }

  static int64_t rows_of(const std::vector<QueryRun>& runs) { return runs.back().first + runs.back().tokens; }

  static size_t query_elements(const LayerPlan& plan, int64_t rows) {
    return static_cast<size_t>(rows) * plan.attention.query_heads * static_cast<size_t>(plan.attention.query_dim());
  }
  static size_t output_elements(const LayerPlan& plan, int64_t rows) {
    return static_cast<size_t>(rows) * plan.attention.query_heads * static_cast<size_t>(plan.attention.output_dim());
  }

  RowEnds ends_of(const LayerPlan& plan, const AttentionRequest& request, float* log_sums) const {
    return {request.sink_logits ? layer_of(plan).sink_logits() : nullptr, log_sums};
  }

  // queries: [rows][query_heads][head_dim].
  void observe(const LayerPlan& plan, uint8_t* const* sums, const std::vector<QueryRun>& runs, const void* queries,
               ElementType type, cudaStream_t stream) {
    std::vector<double*> list;
    for (size_t i = 0; i < runs.size(); ++i) list.push_back(QuerySums::at(plan.attention, sums[i]).sums);
    // A launch takes a sequence once, and of each as many tokens; else they take turns.
    bool together = std::set<double*>(list.begin(), list.end()).size() == list.size();
    for (const QueryRun& run : runs) together &= run.tokens == runs[0].tokens;
    const size_t step = together ? runs.size() : 1;
    for (size_t i = 0; i < runs.size(); i += step) {
      const size_t offset = query_elements(plan, runs[i].first) * element_bytes(type);
      check(launch_add_queries(layer_of(plan).query_shape(), static_cast<const uint8_t*>(queries) + offset, type,
                               runs[i].tokens, static_cast<int>(step), list.data() + i, stream),
            "adding queries");
    }
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

  const std::shared_ptr<DeviceArena> arena_;
  const Stream stream_;
  Workspaces workspaces_;  // with the mutex held
  const DeviceQueue queue_{*arena_, stream_, workspaces_};
  Event before_, after_;  // with the mutex held
  Flags refused_;
  std::atomic<bool> has_graphs_{false};
  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<DeviceScratch> captured_;  // what graphs read, with the mutex held
  ImageTransfers images_{kDevice, queue_,
                         [this](const LayerPlan& plan) -> const DeviceLayer& { return layer_of(plan); }};
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
  const std::string found = "the device has compute capability " + std::to_string(major) + "." + std::to_string(minor);
  if (10 * major + minor < kLeastCapability) return found + ", and 8.0 is needed";
  if (!has_code_for(KVASIR_CUDA_CODE, 10 * major + minor)) {
    return found + ", and this library has code for " KVASIR_CUDA_CODE
                   " alone: build it with "
                   "-PcudaArchitectures='80-real;90'";
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
