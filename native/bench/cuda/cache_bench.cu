// Times a cache on the device through the public interface, as engines call it: with memory of this machine, and with
// memory of the device on a stream.
//
//   cache_bench [--kv-heads 8] [--group 4] [--head-dim 128] [--contexts 8192,32768] [--bits 2]
//
// Microseconds a call, medians. "device" calls are enqueued together and waited for at the end, so that they show what
// a step costs inside a longer chain of work; "one by one" waits for each. AttendTiming does the first line from Java.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "arguments.h"
#include "device_memory.h"
#include "kvasir/kvasir.h"
#include "sequence_bytes.h"
#include "step_bench.h"

namespace {

using kvasir::Cache;
using kvasir::CacheConfig;
using kvasir::ElementType;
using kvasir::Side;

struct Options {
  int kv_heads = 8, group = 4, head_dim = 128, bits = 2;
  std::vector<int> contexts = {8192, 32768};
};

Options parse(int argc, char** argv) {
  Options options;
  bench::parse(argc, argv,
               {{"--kv-heads", &options.kv_heads},
                {"--group", &options.group},
                {"--head-dim", &options.head_dim},
                {"--contexts", &options.contexts},
                {"--bits", &options.bits}});
  return options;
}

std::vector<float> random_numbers(size_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> list(count);
  for (float& x : list) x = normal(random);
  return list;
}

// Median microseconds of a call, over rounds of `calls` that end with `wait`.
template <class Call, class Wait>
double time_calls(int calls, const Call& call, const Wait& wait) {
  for (int i = 0; i < 20; ++i) call();
  wait();
  std::vector<double> rounds;
  for (int round = 0; round < 21; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    wait();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    rounds.push_back(time.count() / calls);
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

void run(const Options& options, int context) {
  const std::unique_ptr<CacheConfig, void (*)(CacheConfig*)> config(CacheConfig::create(1), CacheConfig::destroy);
  config->set_heads(0, options.kv_heads * options.group, options.kv_heads, options.head_dim);
  for (Side side : {Side::kKeys, Side::kValues}) config->set_codec(0, side, "uniform", options.bits);
  config->set_backend("cuda");
  const std::unique_ptr<Cache, void (*)(Cache*)> cache(Cache::create(*config), Cache::destroy);
  const int64_t id = cache->new_sequence();
  const size_t row = static_cast<size_t>(options.kv_heads) * options.head_dim, query = row * options.group;
  const auto rows = random_numbers(row * context);
  cache->append(id, 0, rows.data(), rows.data(), context);
  const auto queries = random_numbers(query);
  std::vector<float> outputs(query);
  const auto nothing = [] {};
  const double here = time_calls(
      50, [&] { cache->attend(0, &id, 1, 1, queries.data(), outputs.data()); }, nothing);

  bench::DeviceMemory device;
  float* memory = device.take<float>(2 * query + 2 * row);
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaMemcpy(memory, queries.data(), query * sizeof(float), cudaMemcpyHostToDevice));
  CUDA(cudaMemcpy(memory + 2 * query, rows.data(), 2 * row * sizeof(float), cudaMemcpyHostToDevice));
  const auto attend = [&] {
    cache->attend_device(0, &id, 1, 1, memory, memory + query, kvasir::ElementType::kFloat32, stream);
  };
  const auto wait = [&] { CUDA(cudaStreamSynchronize(stream)); };
  const double chained = time_calls(50, attend, wait);
  const double alone = time_calls(1, attend, wait);
  const double append = time_calls(
      50,
      [&] {
        cache->append_device(id, 0, memory + 2 * query, memory + 2 * query + row, kvasir::ElementType::kFloat32, 1,
                             stream);
      },
      wait);
  std::printf("%8d %14.2f %14.2f %14.2f %14.2f\n", context, here, chained, alone, append);
  CUDA(cudaStreamDestroy(stream));
}

// Microseconds, medians: until extend returns, until the graph after it has ended, and of the graph alone, which is all
// kernels of a step one after the other.
struct GraphTimes {
  double extend, step, kernels;
};
GraphTimes time_graph_steps(Cache& cache, const std::vector<int64_t>& ids, int layers, const float* rows,
                            const float* queries, float* outputs, cudaStream_t stream) {
  constexpr int kSteps = 7;  // within one block of 16-bit rows, and those before
  const auto count = static_cast<int>(ids.size());
  const std::vector<int64_t> counts(ids.size(), 1);
  cudaGraph_t graph;
  cudaGraphExec_t runnable;
  cudaEvent_t begins, ends;
  CUDA(cudaEventCreate(&begins));
  CUDA(cudaEventCreate(&ends));
  cache.extend(ids.data(), count, stream);
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int layer = 0; layer < layers; ++layer) {
    cache.append_rows_device(layer, ids.data(), counts.data(), count, {rows}, {rows}, stream);
    cache.attend_device(layer, ids.data(), count, 1, queries, outputs, kvasir::ElementType::kFloat32, stream);
  }
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(&runnable, graph, 0));
  CUDA(cudaGraphLaunch(runnable, stream));
  std::vector<double> times[3];
  for (int step = 0; step < kSteps; ++step) {
    CUDA(cudaStreamSynchronize(stream));
    const auto begin = std::chrono::steady_clock::now();
    const auto since = [&] {
      return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
    };
    cache.extend(ids.data(), count, stream);
    times[0].push_back(since());
    CUDA(cudaGraphLaunch(runnable, stream));
    CUDA(cudaStreamSynchronize(stream));
    times[1].push_back(since());
    CUDA(cudaEventRecord(begins, stream));
    CUDA(cudaGraphLaunch(runnable, stream));  // writes the same rows again
    CUDA(cudaEventRecord(ends, stream));
    CUDA(cudaStreamSynchronize(stream));
    float milliseconds = 0;
    CUDA(cudaEventElapsedTime(&milliseconds, begins, ends));
    times[2].push_back(1000.0 * milliseconds);
  }
  for (auto& each : times) std::sort(each.begin(), each.end());
  CUDA(cudaEventDestroy(begins));
  CUDA(cudaEventDestroy(ends));
  CUDA(cudaGraphExecDestroy(runnable));
  CUDA(cudaGraphDestroy(graph));
  return {times[0][kSteps / 2], times[1][kSteps / 2], times[2][kSteps / 2]};
}

// A step of a model on rows, queries and outputs that are on the device: 32 layers, 64 calls.
void print_device_steps() {
  constexpr int kLayers = 32, kHeads = 8, kGroup = 4, kDim = 128, kSteps = 7;  // within one block of 16-bit rows
  constexpr size_t kRow = kHeads * kDim, kQuery = kRow * kGroup;
  std::printf(
      "\nthe same on the device, us (calls):  calls return (64)  step ends  on the stream  |  as a graph: extend "
      "returns "
      "(1)  step ends (2)  kernels alone\n");
  cudaStream_t stream;
  cudaEvent_t begins, ends;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaEventCreate(&begins));
  CUDA(cudaEventCreate(&ends));
  for (const int sequences : {1, 64, 256}) {
    const std::unique_ptr<CacheConfig, void (*)(CacheConfig*)> config(CacheConfig::create(kLayers),
                                                                      CacheConfig::destroy);
    config->set_heads(kvasir::kAllLayers, kHeads * kGroup, kHeads, kDim);
    for (Side side : {Side::kKeys, Side::kValues}) config->set_codec(kvasir::kAllLayers, side, "uniform", 2);
    config->set_backend("cuda");
    const std::unique_ptr<Cache, void (*)(Cache*)> cache(Cache::create(*config), Cache::destroy);
    std::vector<int64_t> ids;
    for (int i = 0; i < sequences; ++i) ids.push_back(cache->new_sequence());
    const std::vector<int64_t> counts(ids.size(), 1);
    bench::DeviceMemory device;
    auto* rows = device.take<float>(ids.size() * kRow);
    auto* queries = device.take<float>(2 * ids.size() * kQuery);
    CUDA(cudaMemset(rows, 0, ids.size() * kRow * sizeof(float)));
    CUDA(cudaMemset(queries, 0, 2 * ids.size() * kQuery * sizeof(float)));
    std::vector<double> times[3];
    for (int step = 0; step < kSteps; ++step) {
      CUDA(cudaStreamSynchronize(stream));
      const auto begin = std::chrono::steady_clock::now();
      const auto since = [&] {
        return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
      };
      CUDA(cudaEventRecord(begins, stream));
      for (int layer = 0; layer < kLayers; ++layer) {
        cache->append_rows_device(layer, ids.data(), counts.data(), sequences, {rows}, {rows}, stream);
        cache->attend_device(layer, ids.data(), sequences, 1, queries, queries + ids.size() * kQuery,
                             kvasir::ElementType::kFloat32, stream);
      }
      CUDA(cudaEventRecord(ends, stream));
      times[0].push_back(since());
      CUDA(cudaStreamSynchronize(stream));
      times[1].push_back(since());
      float milliseconds = 0;
      CUDA(cudaEventElapsedTime(&milliseconds, begins, ends));
      times[2].push_back(1000.0 * milliseconds);
    }
    for (auto& each : times) std::sort(each.begin(), each.end());
    const GraphTimes graphed =
        time_graph_steps(*cache, ids, kLayers, rows, queries, queries + ids.size() * kQuery, stream);
    std::printf("%4d sequences  %34.0f %10.0f %14.0f %28.0f %14.0f %14.0f\n", sequences, times[0][kSteps / 2],
                times[1][kSteps / 2], times[2][kSteps / 2], graphed.extend, graphed.step, graphed.kernels);
  }
  CUDA(cudaEventDestroy(begins));
  CUDA(cudaEventDestroy(ends));
  CUDA(cudaStreamDestroy(stream));
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  bench::print_command(argc, argv);
  std::printf("\nuniform %d bits, %d query heads, %d kv heads, head dim %d; microseconds a call\n", options.bits,
              options.kv_heads * options.group, options.kv_heads, options.head_dim);
  std::printf("%8s %14s %14s %14s %14s\n", "context", "attend", "device", "one by one", "append device");
  for (const int context : options.contexts) run(options, context);
  bench::print_sequence_bytes("cuda");
  bench::print_step_times("cuda");
  print_device_steps();
  return 0;
}
