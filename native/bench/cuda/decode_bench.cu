// Times decode attention on packed pages: microseconds, GB/s of stored bytes, and the error against double.
//
//   decode_bench [--kv-heads 8] [--group 4] [--head-dim 128] [--contexts 8192,32768,131072] [--batches 1,16]
//                [--bits 16,8,4,3,2,1] [--window 0] [--json FILE] [--consumers N] [--slots N]
//
// --consumers and --slots divide a block's shared memory otherwise than the plan would, to see what it is worth.
// Pages are random. Launches go round enough copies of the batch that none finds its pages in the L2 cache. A graph of
// launches is replayed and timed with events; the figure is the median over replays, the spread is (90th - 10th) /
// median.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "fill.cuh"
#include "kernels/cuda/decode.h"

namespace {

using namespace kvasir::cuda;

#define CUDA(call)                                                                                    \
  do {                                                                                                \
    const cudaError_t status = (call);                                                                \
    if (status != cudaSuccess) {                                                                      \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status)); \
      std::exit(3);                                                                                   \
    }                                                                                                 \
  } while (false)

struct Options {
  int kv_heads = 8, group = 4, head_dim = 128, window = 0, consumers = 0, slots = 0;
  std::vector<int> contexts = {8192, 32768, 131072}, batches = {1, 16}, bits = {16, 8, 4, 3, 2, 1};
  const char* json = nullptr;
};

std::vector<int> numbers(const char* text) {
  std::vector<int> list;
  for (const char* p = text; *p != 0;) {
    list.push_back(std::atoi(p));
    p = std::strchr(p, ',');
    if (p == nullptr) break;
    ++p;
  }
  return list;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const char* value = argv[i + 1];
    if (name == "--kv-heads")
      options.kv_heads = std::atoi(value);
    else if (name == "--group")
      options.group = std::atoi(value);
    else if (name == "--head-dim")
      options.head_dim = std::atoi(value);
    else if (name == "--window")
      options.window = std::atoi(value);
    else if (name == "--contexts")
      options.contexts = numbers(value);
    else if (name == "--batches")
      options.batches = numbers(value);
    else if (name == "--bits")
      options.bits = numbers(value);
    else if (name == "--json")
      options.json = value;
    else if (name == "--consumers")
      options.consumers = std::atoi(value);
    else if (name == "--slots")
      options.slots = std::atoi(value);
    else {
      std::fprintf(stderr, "unknown option %s\n", argv[i]);
      std::exit(2);
    }
  }
  return options;
}

template <class T>
T* device_memory(size_t count) {
  void* memory = nullptr;
  CUDA(cudaMalloc(&memory, count * sizeof(T)));
  return static_cast<T*>(memory);
}

template <class T>
T* device_copy(const std::vector<T>& values) {
  T* memory = device_memory<T>(values.size());
  CUDA(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return memory;
}

float half_value(uint16_t bits) {
  __half_raw raw;
  raw.x = bits;
  return __half2float(__half(raw));
}

// One element of a part, decoded by the layout's definition.
double element(const PartLayout& part, const uint8_t* bytes, int x, int y) {
  uint16_t halves[2];
  if (part.bits == kFloat16Bits) {
    std::memcpy(halves, bytes + part.float16_byte(x, y), 2);
    return half_value(halves[0]);
  }
  int code = 0;
  for (int plane = 0; plane < (part.bits == 3 ? 2 : 1); ++plane) {
    const Place place = part.code_place(plane, x, y);
    const int width = part.bits == 3 ? 2 - plane : part.bits;
    code |= (bytes[part.parameter_bytes() + place.byte] >> place.bit & ((1 << width) - 1)) << 2 * plane;
  }
  std::memcpy(halves, bytes + part.parameter_byte(x), 4);
  return half_value(halves[1]) + code * (static_cast<double>(half_value(halves[0])) / ((1 << part.bits) - 1));
}

// All copies of one batch, and what launches need.
class Batch {
 public:
  Batch(const Options& options, int bits, int context, int count)
      : options_(options), layout_{options.head_dim, bits, bits}, kind_{bits, bits}, count_(count) {
    window_ = std::min(options.window, context);
    pages_ = (context - window_) / kTokensPerPage;
    CUDA(plan_decode({options.head_dim, options.kv_heads, options.group, count}, &plan_));
    const int slots_of_plan = plan_.consumers * plan_.slots;
    if (options.consumers > 0) plan_.consumers = std::min(plan_.consumers, options.consumers);
    if (options.slots > 0) plan_.slots = std::min(slots_of_plan / plan_.consumers, options.slots);
    const size_t page_bytes = static_cast<size_t>(layout_.bytes()) * options.kv_heads;
    set_bytes_ = page_bytes * pages_ * count;
    // 50 to 60 MB of L2: three times that between two uses of a page.
    sets_ = static_cast<int>(std::max<size_t>(2, (180u << 20) / set_bytes_ + 1));
    blocks_ = device_memory<uint8_t>(set_bytes_ * sets_);
    fill();
    const RowTileLayout tile = {options.head_dim};
    const size_t tiles = (window_ + kTileSize - 1) / kTileSize;
    const size_t row_bytes = tiles * tile.bytes() * options.kv_heads;
    rows_ = device_memory<uint8_t>(row_bytes * count + 16);
    CUDA(cudaMemset(rows_, 0x11, row_bytes * count + 16));
    for (int set = 0; set < sets_; ++set) {
      std::vector<DecodeSequence> sequences;
      for (int s = 0; s < count; ++s) {
        std::vector<uint64_t> table;
        for (int p = 0; p < pages_; ++p) table.push_back(page_reference(page(set, s, p), 0));
        DecodeSequence sequence = {};
        sequence.pages = device_copy(table);
        sequence.page_count = pages_;
        sequence.window = {rows_ + row_bytes * s, static_cast<int64_t>(tiles * tile.bytes()), 0, window_};
        sequences.push_back(sequence);
        owned_.push_back(const_cast<uint64_t*>(sequence.pages));
      }
      DecodeSequence* const table = device_copy(sequences);
      owned_.push_back(table);
      addresses_.emplace_back();
      for (int s = 0; s < count; ++s) addresses_.back().push_back(table + s);
      listed_.push_back(device_copy(addresses_.back()));
      owned_.push_back(listed_.back());
    }
    for (size_t i = 0; i < static_cast<size_t>(count) * options.kv_heads * options.group * options.head_dim; ++i) {
      queries_host_.push_back(3.0f * unit(hashed(i + 77)));
    }
    queries_ = device_copy(queries_host_);
    outputs_ = device_memory<float>(queries_host_.size());
    workspace_ = device_memory<uint8_t>(plan_.workspace_bytes);
    CUDA(clear_workspace(plan_, workspace_, nullptr));
    CUDA(cudaDeviceSynchronize());
  }
  ~Batch() {
    for (void* memory : owned_) cudaFree(memory);
    for (void* memory : {static_cast<void*>(blocks_), static_cast<void*>(rows_), static_cast<void*>(queries_),
                         static_cast<void*>(outputs_), static_cast<void*>(workspace_)}) {
      cudaFree(memory);
    }
  }

  size_t bytes() const {
    return set_bytes_ + static_cast<size_t>(2) * 2 * window_ * options_.head_dim * options_.kv_heads * count_;
  }
  void launch(int set, cudaStream_t stream) const {
    const bool listed = count_ > kInlineSequences;
    const DecodeRequest request = {listed ? listed_[set % sets_] : addresses_[set % sets_].data(),
                                   listed,
                                   count_,
                                   queries_,
                                   outputs_,
                                   NumberType::kFloat32,
                                   1.0f / std::sqrt(static_cast<float>(options_.head_dim)),
                                   &kind_,
                                   1,
                                   workspace_};
    CUDA(launch_decode(plan_, request, stream));
  }

  // Error of the last sequence's last kv head, against double. Without window rows.
  double error() const {
    if (window_ > 0) return NAN;
    const int d = options_.head_dim, group = options_.group;
    CUDA(cudaMemset(outputs_, 0xff, 4 * queries_host_.size()));
    launch(0, nullptr);
    std::vector<float> outputs(queries_host_.size());
    CUDA(cudaMemcpy(outputs.data(), outputs_, 4 * outputs.size(), cudaMemcpyDeviceToHost));
    std::vector<double> keys(static_cast<size_t>(pages_) * kTokensPerPage * d), values(keys.size());
    std::vector<uint8_t> block(layout_.bytes());
    for (int p = 0; p < pages_; ++p) {
      CUDA(cudaMemcpy(block.data(),
                      page(0, count_ - 1, p) + static_cast<size_t>(options_.kv_heads - 1) * layout_.bytes(),
                      block.size(), cudaMemcpyDeviceToHost));
      for (int t = 0; t < kTokensPerPage; ++t) {
        for (int c = 0; c < d; ++c) {
          const size_t i = (static_cast<size_t>(p) * kTokensPerPage + t) * d + c;
          keys[i] = element(layout_.key(), block.data(), c, t);
          values[i] = element(layout_.value(), block.data() + layout_.value_offset(c / kValueSpan), t, c % kValueSpan);
        }
      }
    }
    double wrong = 0.0, power = 0.0;
    const size_t tokens = keys.size() / d;
    for (int h = 0; h < group; ++h) {
      const size_t row = queries_host_.size() - static_cast<size_t>(group - h) * d;
      std::vector<double> scores(tokens), out(d, 0.0);
      for (size_t t = 0; t < tokens; ++t) {
        double dot = 0.0;
        for (int c = 0; c < d; ++c) dot += keys[t * d + c] * queries_host_[row + c];
        scores[t] = dot / std::sqrt(static_cast<double>(d));
      }
      const double highest = *std::max_element(scores.begin(), scores.end());
      double sum = 0.0;
      for (double& s : scores) sum += s = std::exp(s - highest);
      for (size_t t = 0; t < tokens; ++t) {
        for (int c = 0; c < d; ++c) out[c] += scores[t] / sum * values[t * d + c];
      }
      for (int c = 0; c < d; ++c) {
        wrong += (outputs[row + c] - out[c]) * (outputs[row + c] - out[c]);
        power += out[c] * out[c];
      }
    }
    return wrong / power;
  }

 private:
  uint8_t* page(int set, int sequence, int page) const {
    return blocks_ +
           ((static_cast<size_t>(set) * count_ + sequence) * pages_ + page) * layout_.bytes() * options_.kv_heads;
  }
  void fill() {
    const int64_t count = static_cast<int64_t>(set_bytes_ * sets_ / layout_.bytes());
    bench::fill_blocks<<<2048, 256>>>(blocks_, count, layout_, 12345);
    CUDA(cudaGetLastError());
  }
  static uint32_t hashed(uint64_t x) { return bench::hashed(x); }
  static float unit(uint32_t x) { return bench::unit(x); }

  const Options& options_;
  const HeadLayout layout_;
  const PageKind kind_;
  const int count_;
  int window_ = 0, pages_ = 0, sets_ = 0;
  size_t set_bytes_ = 0;
  DecodePlan plan_ = {};
  uint8_t* blocks_ = nullptr;
  uint8_t* rows_ = nullptr;
  std::vector<std::vector<const DecodeSequence*>> addresses_;  // [sets][count]
  std::vector<const DecodeSequence**> listed_;                 // the same in device memory
  std::vector<void*> owned_;
  std::vector<float> queries_host_;
  float* queries_ = nullptr;
  float* outputs_ = nullptr;
  uint8_t* workspace_ = nullptr;
};

struct Timing {
  double us;
  double spread;
};

// Median time of one launch, from replays of a graph of them.
Timing time_launches(const Batch& batch) {
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  for (int i = 0; i < 3; ++i) batch.launch(i, stream);
  cudaEvent_t begin, end;
  CUDA(cudaEventCreate(&begin));
  CUDA(cudaEventCreate(&end));
  auto timed = [&](auto work) {
    CUDA(cudaEventRecord(begin, stream));
    work();
    CUDA(cudaEventRecord(end, stream));
    CUDA(cudaEventSynchronize(end));
    float ms = 0;
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    return 1000.0 * ms;
  };
  const double once = timed([&] { batch.launch(0, stream); });
  const int launches = std::clamp(static_cast<int>(3000.0 / once), 4, 200);
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < launches; ++i) batch.launch(i, stream);
  cudaGraph_t graph;
  CUDA(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec;
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  std::vector<double> times;
  for (int i = 0; i < 25; ++i) {
    const double us = timed([&] { CUDA(cudaGraphLaunch(exec, stream)); }) / launches;
    if (i >= 4) times.push_back(us);
  }
  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaEventDestroy(begin));
  CUDA(cudaEventDestroy(end));
  CUDA(cudaStreamDestroy(stream));
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  return {median, (times[times.size() * 9 / 10] - times[times.size() / 10]) / median};
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  for (int i = 0; i < argc; ++i) std::printf("%s ", argv[i]);
  cudaDeviceProp properties;
  CUDA(cudaGetDeviceProperties(&properties, 0));
  std::printf("\n%s, %d query heads, %d kv heads, head dim %d, window %d\n", properties.name,
              options.kv_heads * options.group, options.kv_heads, options.head_dim, options.window);
  std::printf("%5s %8s %6s %10s %8s %8s %10s\n", "bits", "context", "batch", "us", "GB/s", "spread", "nmse");
  FILE* json = options.json != nullptr ? std::fopen(options.json, "w") : nullptr;
  if (json != nullptr) std::fprintf(json, "[");
  const char* comma = "\n";
  for (const int bits : options.bits) {
    for (const int batch_size : options.batches) {
      for (const int context : options.contexts) {
        const Batch batch(options, bits, context, batch_size);
        const Timing timing = time_launches(batch);
        const double error = batch.error();
        const double gbps = static_cast<double>(batch.bytes()) / timing.us / 1000.0;
        std::printf("%5d %8d %6d %10.2f %8.0f %7.1f%% %10.2e\n", bits, context, batch_size, timing.us, gbps,
                    100.0 * timing.spread, error);
        std::fflush(stdout);
        if (json == nullptr) continue;
        std::fprintf(
            json, "%s {\"codec\": \"%s\", \"bits\": %d, \"context\": %d, \"batch\": %d, \"us\": %.3f, \"gbps\": %.1f}",
            comma, bits == 16 ? "f16" : "uniform", bits, context, batch_size, timing.us, gbps);
        comma = ",\n";
      }
    }
  }
  if (json != nullptr) {
    std::fprintf(json, "\n]\n");
    std::fclose(json);
  }
  return 0;
}
