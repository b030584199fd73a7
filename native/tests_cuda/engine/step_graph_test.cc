// Whole steps of a batch in one CUDA graph, appends included: what it computes and stores, step after step, is what
// plain calls make of the same tokens in another cache of the device.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "commvq/seal_case.h"
#include "engine/twin_caches.h"
#include "kvasir/kvasir.h"
#include "pages/page_case.h"
#include "reference/attention.h"

namespace {

using kvasir::Cache;
using kvasir::CacheConfig;
using kvasir::ElementType;
using kvasir::Side;
using page_case::Buffer;
using twin_caches::CachePointer;
using twin_caches::ConfigPointer;

constexpr int kLayers = 2, kKvHeads = 2, kGroup = 4, kHeadDim = 64;
constexpr size_t kRow = kKvHeads * kHeadDim, kQuery = kRow * kGroup;

const commvq_seal::Scene& books() {
  static const commvq_seal::Scene scene({kKvHeads, kHeadDim, kvasir::RopePairs::kHalves, 5, 64, 1, 128, 0, 0, 1});
  return scene;
}

struct Setting {
  std::string codec;
  int window = 20;
  int sliding = 0;  // of layer 1
  int64_t budget = 0;
};

CachePointer make_cache(const Setting& s) {
  const ConfigPointer config(CacheConfig::create(kLayers));
  config->set_heads(kvasir::kAllLayers, kKvHeads * kGroup, kKvHeads, kHeadDim);
  const int bits = s.codec == "f16" || s.codec == "progressive" ? 16 : s.codec == "commvq" ? 1 : 2;
  for (int layer = 0; layer < kLayers; ++layer) {
    config->set_codec(layer, Side::kKeys, s.codec.c_str(), bits);
    config->set_codec(layer, Side::kValues, s.codec == "tiered" ? "uniform" : s.codec.c_str(), bits);
    if (s.codec != "commvq") continue;
    double frequencies[kHeadDim / 2];
    kvasir::rope_frequencies(10000.0, kHeadDim, frequencies);
    config->set_rope(layer, kvasir::RopePairs::kHalves, frequencies, kHeadDim / 2, 1.0);
    config->set_key_codebook(layer, *books().key_codebook, 1);
    config->set_value_codebook(layer, *books().value_codebook);
  }
  if (s.sliding > 0) config->set_sliding_window(1, s.sliding);
  config->set_sinks(5);
  config->set_window(s.window);
  config->set_budget(s.budget);
  config->set_backend("cuda");
  return CachePointer(Cache::create(*config));
}

// A cache whose steps are graphs, and one that is called.
class Steps {
 public:
  Steps(const Setting& setting, std::vector<int> lengths)
      : setting_(setting),
        graphed_(make_cache(setting)),
        called_(make_cache(setting)),
        count_(lengths.size()),
        keys_(kLayers * count_ * kRow * sizeof(float)),
        values_(kLayers * count_ * kRow * sizeof(float)),
        queries_(kLayers * count_ * kQuery * sizeof(float)),
        outputs_(kLayers * count_ * kQuery * sizeof(float)),
        ones_(count_, 1) {
    CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    for (const int length : lengths) {
      ids_.push_back(graphed_->new_sequence());
      called_->new_sequence();
      if (length > 0) prompt(ids_.back(), length);
    }
  }
  ~Steps() {
    if (graph_) cudaGraphExecDestroy(graph_);
    cudaStreamDestroy(stream_);
  }
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

  Cache& graphed() { return *graphed_; }
  Cache& called() { return *called_; }
  const std::vector<int64_t>& ids() const { return ids_; }

  void prompt(int64_t id, int tokens) {
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto keys = numbers(tokens * kRow), values = numbers(tokens * kRow);
      graphed_->append(id, layer, keys.data(), values.data(), tokens);
      called_->append(id, layer, keys.data(), values.data(), tokens);
    }
  }

  void extend() { graphed_->extend(ids_.data(), static_cast<int>(count_), stream_); }

  void capture() {
    cudaGraph_t graph;
    CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    try {
      record();
    } catch (...) {
      cudaStreamEndCapture(stream_, &graph);
      cudaGraphDestroy(graph);
      throw;
    }
    CUDA(cudaStreamEndCapture(stream_, &graph));
    CUDA(cudaGraphInstantiate(&graph_, graph, 0));
    CUDA(cudaGraphDestroy(graph));
  }

  // What a step is.
  void record() {
    for (int layer = 0; layer < kLayers; ++layer) {
      const size_t rows = layer * count_ * kRow, queries = layer * count_ * kQuery;
      graphed_->append_rows_device(layer, ids_.data(), ones_.data(), static_cast<int>(count_),
                                   {keys_.as<float>() + rows}, {values_.as<float>() + rows}, stream_);
      graphed_->attend_device(layer, ids_.data(), static_cast<int>(count_), 1, queries_.as<float>() + queries,
                              outputs_.as<float>() + queries, ElementType::kFloat32, stream_);
    }
  }

  // The graph, and the same by calls; the sequences of the graph are a token longer already.
  void run(const std::string& where) {
    const auto keys = numbers(kLayers * count_ * kRow), values = numbers(kLayers * count_ * kRow);
    const auto queries = numbers(kLayers * count_ * kQuery);
    set(keys_, keys);
    set(values_, values);
    set(queries_, queries);
    CUDA(cudaGraphLaunch(graph_, stream_));
    CUDA(cudaStreamSynchronize(stream_));
    const std::vector<uint8_t> bytes = outputs_.read();
    const auto* outputs = reinterpret_cast<const float*>(bytes.data());
    std::vector<float> expected(count_ * kQuery);
    // First all appends: pages of one layer may shrink for those of another.
    for (int layer = 0; layer < kLayers; ++layer) {
      const size_t rows = layer * count_ * kRow;
      called_->append_rows(layer, ids_.data(), ones_.data(), static_cast<int>(count_), {keys.data() + rows},
                           {values.data() + rows});
    }
    for (int layer = 0; layer < kLayers; ++layer) {
      const size_t at = layer * count_ * kQuery;
      called_->attend(layer, ids_.data(), static_cast<int>(count_), 1, queries.data() + at, expected.data());
      const double error = reference::nmse(outputs + at, std::vector<double>(expected.begin(), expected.end()));
      // Both round alike, but add up in another order; CommVQ's tables are of 16-bit whole numbers.
      CHECK(error <= (setting_.codec == "commvq" ? 1e-5 : 4e-6),
            setting_.codec << " " << where << " layer " << layer << ": " << error);
    }
  }

  // Rows, pages and lengths are those of plain calls.
  void compare(const std::string& where) {
    for (const int64_t id : ids_) {
      for (int layer = 0; layer < kLayers; ++layer) {
        const int64_t length = called_->length(id, layer), pages = called_->page_count(id, layer);
        CHECK(graphed_->length(id, layer) == length, where);
        CHECK(graphed_->page_count(id, layer) == pages, where << ": " << graphed_->page_count(id, layer));
        const int64_t held = setting_.sliding > 0 && layer == 1 ? std::min<int64_t>(length, 40) : length;
        for (const Side side : {Side::kKeys, Side::kValues}) {
          std::vector<float> rows[2] = {std::vector<float>(held * kRow), std::vector<float>(held * kRow)};
          graphed_->read(id, layer, side, length - held, held, rows[0].data());
          called_->read(id, layer, side, length - held, held, rows[1].data());
          CHECK(rows[0] == rows[1], setting_.codec << " " << where << " rows of sequence " << id << " layer " << layer
                                                   << " side " << static_cast<int>(side));
        }
      }
    }
  }

 private:
  std::vector<float> numbers(size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> numbers(count);
    for (float& x : numbers) x = normal(random_);
    return numbers;
  }
  void set(const Buffer& buffer, const std::vector<float>& numbers) {
    CUDA(cudaMemcpyAsync(buffer.data(), numbers.data(), numbers.size() * sizeof(float), cudaMemcpyHostToDevice,
                         stream_));
  }

  const Setting setting_;
  const CachePointer graphed_, called_;
  const size_t count_;
  const Buffer keys_, values_, queries_, outputs_;
  const std::vector<int64_t> ones_;
  std::vector<int64_t> ids_;
  std::mt19937 random_{7};
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
};

template <class Call>
bool refuses(kvasir::ErrorCode code, const Call& call) {
  try {
    call();
  } catch (const kvasir::Error& error) {
    return error.code() == code;
  }
  return false;
}

}  // namespace

DEVICE_CASE("step graphs: whole steps of every codec, across sealed pages") {
  for (const char* codec : {"f16", "uniform", "progressive", "pattern", "tiered", "commvq", "spectral"}) {
    // One is among its sinks, one about to take a block, and one about to seal its first page. A table of patterns is
    // made of the tokens that are there when that happens, which a step's own is not yet.
    const int sealing = std::string(codec) == "pattern" ? 5 + 20 + 130 : 5 + 20 + 126;
    Steps steps({codec}, {1, std::string(codec) == "pattern" ? 200 : 5 + 16, sealing, 700});
    steps.extend();
    steps.capture();
    for (int step = 0; step < 150; ++step) {
      if (step > 0) steps.extend();
      steps.run("step " + std::to_string(step));
      if (step % 37 == 0) steps.compare("step " + std::to_string(step));
    }
    steps.compare("at the end");
  }
}

DEVICE_CASE("step graphs: sliding windows, and sequences beyond what kernel parameters hold") {
  Steps sliding({"uniform", 20, 100}, {3, 400});
  sliding.extend();
  sliding.capture();
  for (int step = 0; step < 140; ++step) {
    if (step > 0) sliding.extend();
    sliding.run("sliding, step " + std::to_string(step));
  }
  sliding.compare("sliding");
  for (const char* codec : {"uniform", "tiered", "spectral"}) {
    std::vector<int> lengths;
    for (int i = 0; i < 70; ++i) lengths.push_back(1 + 7 * i);
    Steps many({codec}, lengths);
    many.extend();
    many.capture();
    for (int step = 0; step < 20; ++step) {
      if (step > 0) many.extend();
      many.run("many, step " + std::to_string(step));
    }
    many.compare("many");
  }
}

DEVICE_CASE("step graphs: without a window a page is sealed one step later, and is the same") {
  Steps steps({"uniform", 0}, {5 + 126});
  steps.extend();
  steps.capture();
  steps.run("127 tokens behind the sinks");
  steps.extend();
  CHECK(steps.graphed().page_count(steps.ids()[0], 0) == 0, "its newest token is not there yet");
  // Attention to 16-bit rows is not that to the page: no comparison of this one.
  for (const int64_t pages : {1, 1}) {
    steps.extend();
    CHECK(steps.graphed().page_count(steps.ids()[0], 0) == pages, "sealed by the next step");
  }
}

DEVICE_CASE("step graphs: plain calls between steps, forks, steps taken back") {
  Steps steps({"uniform"}, {40, 300});
  steps.extend();
  steps.capture();
  for (int step = 0; step < 60; ++step) {
    if (step > 0) steps.extend();
    steps.run("step " + std::to_string(step));
    const int64_t id = steps.ids()[static_cast<size_t>(step % 2)];
    if (step % 11 == 3) steps.prompt(id, 90);
    if (step % 7 == 2) steps.graphed().fork(id);  // shares blocks that the next step writes to
    if (step % 13 == 5) {
      steps.extend();
      for (const int64_t each : steps.ids()) {
        steps.graphed().truncate(each, steps.graphed().length(each, 0) - 1);
      }
    }
  }
  steps.compare("at the end");
}

DEVICE_CASE("step graphs: pages that give up precision") {
  Steps steps({"progressive", 20, 0, 600000}, {200, 500});
  steps.extend();
  steps.capture();
  for (int step = 0; step < 300; ++step) {
    if (step > 0) steps.extend();
    steps.run("step " + std::to_string(step));
  }
  const std::unique_ptr<kvasir::CacheStats, twin_caches::Deleter> stats(steps.graphed().stats());
  CHECK(stats->shrinks(kvasir::kAllLayers) > 0, "the budget is to be small enough");
  steps.compare("at the end");
}

DEVICE_CASE("step graphs: a step that finds no room in a later layer changes nothing") {
  constexpr int64_t kBlock = 16 * 2 * kRow * 2;
  Steps steps({"uniform", 20, 0, 5 * kBlock}, {16 + 5});  // sinks and window are a block each, in two layers
  CHECK(refuses(kvasir::ErrorCode::kBudgetExceeded, [&] { steps.extend(); }), "room for one layer alone");
  const std::unique_ptr<kvasir::CacheStats, twin_caches::Deleter> stats(steps.graphed().stats());
  CHECK(stats->bytes() == 4 * kBlock, stats->bytes());
  steps.compare("as before");
}

DEVICE_CASE("step graphs: what cannot be is refused") {
  using kvasir::ErrorCode;
  Steps steps({"uniform"}, {20, 0});
  const int64_t twice[] = {steps.ids()[0], steps.ids()[0]};
  CHECK(refuses(ErrorCode::kInvalidArgument, [&] { steps.graphed().extend(twice, 2, nullptr); }), "twice");
  CHECK(refuses(ErrorCode::kInvalidArgument, [&] { steps.capture(); }), "a sequence without tokens");
  steps.extend();
  steps.capture();
  steps.run("after that");
  steps.graphed().guess(steps.ids()[0]);
  CHECK(refuses(ErrorCode::kInvalidArgument, [&] { steps.extend(); }), "guesses");
  steps.compare("at the end");
  Steps shifted({"commvq"}, {200});
  shifted.graphed().shift(shifted.ids()[0], 100, 7);
  CHECK(refuses(ErrorCode::kInvalidArgument, [&] { shifted.extend(); }), "a shift");
}
