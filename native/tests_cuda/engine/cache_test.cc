// A cache on the device, through the public interface: memory of the device, streams, graphs, refusals, no leaks. That
// what it computes is right is for native/tests to say, which run on every backend.
#include <cuda_runtime_api.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/twin_caches.h"
#include "kvasir/kvasir.h"

namespace {

using kvasir::Cache;
using kvasir::CacheConfig;
using kvasir::ElementType;
using kvasir::Side;
using twin_caches::CachePointer;
using twin_caches::ConfigPointer;

constexpr int kQueryHeads = 8, kKvHeads = 2, kHeadDim = 64;
constexpr int kRow = kKvHeads * kHeadDim, kQuery = kQueryHeads * kHeadDim;

CachePointer make_cache(const char* codec, int bits, int64_t budget = 0, int layers = 1) {
  const ConfigPointer config(CacheConfig::create(layers));
  config->set_heads(kvasir::kAllLayers, kQueryHeads, kKvHeads, kHeadDim);
  for (Side side : {Side::kKeys, Side::kValues}) config->set_codec(kvasir::kAllLayers, side, codec, bits);
  config->set_budget(budget);
  config->set_backend("cuda");
  return CachePointer(Cache::create(*config));
}

std::vector<float> random_numbers(int seed, size_t count) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::normal_distribution<float> normal;
  std::vector<float> numbers(count);
  for (float& x : numbers) x = normal(random);
  return numbers;
}

class DeviceNumbers {
 public:
  explicit DeviceNumbers(size_t count) : count_(count) { CUDA(cudaMalloc(&memory_, count * sizeof(float))); }
  explicit DeviceNumbers(const std::vector<float>& numbers) : DeviceNumbers(numbers.size()) { set(numbers); }
  ~DeviceNumbers() { cudaFree(memory_); }
  DeviceNumbers(const DeviceNumbers&) = delete;
  DeviceNumbers& operator=(const DeviceNumbers&) = delete;
  float* get() const { return static_cast<float*>(memory_); }
  void set(const std::vector<float>& numbers) {
    CUDA(cudaMemcpy(memory_, numbers.data(), numbers.size() * sizeof(float), cudaMemcpyHostToDevice));
  }
  std::vector<float> read(cudaStream_t stream) const {
    std::vector<float> numbers(count_);
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaMemcpy(numbers.data(), memory_, count_ * sizeof(float), cudaMemcpyDeviceToHost));
    return numbers;
  }

 private:
  void* memory_ = nullptr;
  size_t count_;
};

struct Stream {
  Stream() { CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream); }
  cudaStream_t stream;
};

std::vector<float> attend(Cache& cache, const std::vector<int64_t>& ids, const std::vector<float>& queries) {
  std::vector<float> outputs(queries.size());
  cache.attend(0, ids.data(), static_cast<int>(ids.size()), 1, queries.data(), outputs.data());
  return outputs;
}

template <class Call>
kvasir::ErrorCode error_of(Call call) {
  try {
    call();
  } catch (const kvasir::Error& error) {
    return error.code();
  }
  return {};
}

}  // namespace

DEVICE_CASE("cache: memory of the device and of this machine give the same bits") {
  for (const char* codec : {"f16", "uniform", "pattern", "progressive", "tiered"}) {
    const ConfigPointer config(CacheConfig::create(1));
    config->set_heads(0, kQueryHeads, kKvHeads, kHeadDim);
    const int bits = std::string(codec) == "f16" ? 16 : std::string(codec) == "tiered" ? 2 : 4;
    config->set_codec(0, Side::kKeys, codec, bits);
    const std::string values = std::string(codec) == "tiered" ? "uniform" : codec;
    config->set_codec(0, Side::kValues, values.c_str(), bits);
    config->set_backend("cuda");
    const CachePointer cache(Cache::create(*config));
    const int64_t here = cache->new_sequence(), there = cache->new_sequence();
    const Stream stream;
    const auto keys = random_numbers(1, 700 * kRow), values_of = random_numbers(2, 700 * kRow);
    const DeviceNumbers device_keys(keys), device_values(values_of);
    int64_t first = 0;
    for (const int64_t tokens : {1, 300, 5, 130, 264}) {
      const int64_t offset = first * kRow;
      cache->append(here, 0, keys.data() + offset, values_of.data() + offset, tokens);
      cache->append_device(there, 0, device_keys.get() + offset, device_values.get() + offset,
                           kvasir::ElementType::kFloat32, tokens, stream.stream);
      first += tokens;
      const auto queries = random_numbers(10 + static_cast<int>(first), kQuery);
      const DeviceNumbers device_queries(queries), device_outputs(queries.size());
      cache->attend_device(0, &there, 1, 1, device_queries.get(), device_outputs.get(), kvasir::ElementType::kFloat32,
                           stream.stream);
      CHECK(device_outputs.read(stream.stream) == attend(*cache, {here}, queries), codec << " at " << first);
    }
  }
}

DEVICE_CASE("cache: a captured graph follows sequences that grow") {
  const CachePointer cache = make_cache("uniform", 2);
  const std::vector<int64_t> ids = {cache->new_sequence(), cache->new_sequence()};
  const Stream stream;
  const auto rows = random_numbers(3, 1000 * kRow), queries = random_numbers(4, 2 * kQuery);
  for (int64_t id : ids) cache->append(id, 0, rows.data(), rows.data(), 200);
  const DeviceNumbers device_queries(queries), device_outputs(queries.size());
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CUDA(cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeGlobal));
  cache->attend_device(0, ids.data(), 2, 1, device_queries.get(), device_outputs.get(), kvasir::ElementType::kFloat32,
                       stream.stream);
  CUDA(cudaStreamEndCapture(stream.stream, &graph));
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  int64_t length = 200;
  for (const int64_t tokens : {0, 1, 127, 300, 5}) {
    if (tokens > 0) cache->append(ids[1], 0, rows.data() + length * kRow, rows.data(), tokens);
    length += tokens;
    const auto expected = attend(*cache, ids, queries);  // waits for the append, too
    CUDA(cudaGraphLaunch(executable, stream.stream));
    CHECK(device_outputs.read(stream.stream) == expected, length << " tokens");
  }
  CUDA(cudaGraphExecDestroy(executable));
  CUDA(cudaGraphDestroy(graph));
}

DEVICE_CASE("cache: streams of callers are kept in order") {
  const CachePointer cache = make_cache("uniform", 4);
  const int64_t id = cache->new_sequence();
  const Stream one, two;
  const auto rows = random_numbers(5, 2000 * kRow), queries = random_numbers(6, kQuery);
  const DeviceNumbers device_rows(rows), device_queries(queries), outputs(queries.size());
  const CachePointer other = make_cache("uniform", 4);
  const int64_t expected_id = other->new_sequence();
  for (int i = 0; i < 50; ++i) {
    const int64_t offset = int64_t{40} * i * kRow;
    const Stream& stream = i % 2 == 0 ? one : two;
    cache->append_device(id, 0, device_rows.get() + offset, device_rows.get() + offset, kvasir::ElementType::kFloat32,
                         40, stream.stream);
    const Stream& reader = i % 3 == 0 ? one : two;
    cache->attend_device(0, &id, 1, 1, device_queries.get(), outputs.get(), kvasir::ElementType::kFloat32,
                         reader.stream);
    other->append(expected_id, 0, rows.data() + offset, rows.data() + offset, 40);
    CHECK(outputs.read(reader.stream) == attend(*other, {expected_id}, queries), "step " << i);
  }
}

DEVICE_CASE("cache: what the device refuses is reported once, by the next call") {
  const CachePointer cache = make_cache("uniform", 2);
  const int64_t id = cache->new_sequence();
  auto rows = random_numbers(7, 10 * kRow);
  const auto queries = random_numbers(8, kQuery);
  const DeviceNumbers good(rows);
  rows[5] = std::numeric_limits<float>::quiet_NaN();
  const DeviceNumbers bad(rows);
  cache->append_device(id, 0, good.get(), bad.get(), kvasir::ElementType::kFloat32, 10, nullptr);
  CUDA(cudaDeviceSynchronize());
  const auto code = error_of([&] { attend(*cache, {id}, queries); });
  CHECK(code == kvasir::ErrorCode::kNotFinite, "code " << static_cast<int>(code));
  const auto outputs = attend(*cache, {id}, queries);
  bool finite = true;
  for (float x : outputs) finite = finite && std::isfinite(x);
  CHECK(finite, "outputs");
}

DEVICE_CASE("cache: memory that the device cannot reach is refused, and nothing is lost") {
  const CachePointer cache = make_cache("uniform", 2);
  const int64_t id = cache->new_sequence();
  const DeviceNumbers rows(random_numbers(1, kRow + 1)), queries(random_numbers(2, kQuery)), outputs(kQuery);
  alignas(16) float here[kQuery] = {};
  const auto append = [&](const float* keys, const float* values) {
    cache->append_device(id, 0, keys, values, kvasir::ElementType::kFloat32, 1, nullptr);
  };
  const auto look = [&](const float* from, float* to) {
    cache->attend_device(0, &id, 1, 1, from, to, kvasir::ElementType::kFloat32, nullptr);
  };
  constexpr auto kRefused = kvasir::ErrorCode::kInvalidArgument;
  CHECK(error_of([&] { append(here, rows.get()); }) == kRefused, "keys");
  CHECK(error_of([&] { append(rows.get(), here); }) == kRefused, "values");
  CHECK(error_of([&] { append(rows.get() + 1, rows.get()); }) == kRefused, "alignment");
  append(rows.get(), rows.get());
  CHECK(cache->length(id, 0) == 1, cache->length(id, 0));
  CHECK(error_of([&] { look(here, outputs.get()); }) == kRefused, "queries");
  CHECK(error_of([&] { look(queries.get(), here); }) == kRefused, "outputs");
  look(queries.get(), outputs.get());
  CHECK(std::isfinite(outputs.read(nullptr)[0]), "the device still works");
}

LONE_DEVICE_CASE("cache: caches and sequences come and go without a leak") {
  const auto rows = random_numbers(9, 600 * kRow), queries = random_numbers(10, kQuery);
  size_t before = 0, total = 0;
  for (int round = 0; round < 12; ++round) {
    const CachePointer cache = make_cache(round % 2 == 0 ? "pattern" : "progressive", 4);
    for (int i = 0; i < 100; ++i) {
      const int64_t id = cache->new_sequence();
      cache->append(id, 0, rows.data(), rows.data(), 300 + i);
      const int64_t fork = cache->fork(id);
      cache->append(fork, 0, rows.data(), rows.data(), 100);
      attend(*cache, {id, fork}, [&] {
        auto both = queries;
        both.insert(both.end(), queries.begin(), queries.end());
        return both;
      }());
      cache->truncate(fork, 100);
      cache->release(id);
      cache->release(fork);
    }
    const std::unique_ptr<kvasir::CacheStats, twin_caches::Deleter> stats(cache->stats());
    CHECK(stats->bytes() == 0, stats->bytes() << " bytes are still held");
    size_t free = 0;
    CUDA(cudaMemGetInfo(&free, &total));
    if (round == 1) before = free;
    if (round > 1) CHECK(free >= before, "round " << round << ": " << before - free << " bytes fewer");
  }
}

LONE_DEVICE_CASE("cache: too much for the device is refused, and nothing is lost") {
  const CachePointer cache = make_cache("f16", 16);
  const int64_t id = cache->new_sequence();
  const auto rows = random_numbers(11, 1000 * kRow), queries = random_numbers(12, kQuery);
  cache->append(id, 0, rows.data(), rows.data(), 500);
  const auto before = attend(*cache, {id}, queries);
  size_t free = 0, total = 0;
  CUDA(cudaMemGetInfo(&free, &total));
  void* hog = nullptr;
  // All but a little: the slab in use has room for small things alone.
  for (size_t bytes = free; bytes > (size_t{8} << 20) && !hog; bytes -= size_t{8} << 20) {
    if (cudaMalloc(&hog, bytes) != cudaSuccess) cudaGetLastError();
  }
  int64_t length = 500;
  kvasir::ErrorCode code = {};
  const std::vector<float> many = random_numbers(13, size_t{40000} * kRow);
  for (int i = 0; i < 40 && code == kvasir::ErrorCode{}; ++i) {
    code = error_of([&] {
      cache->append(id, 0, many.data(), many.data(), 40000);
      length += 40000;
    });
  }
  CHECK(code == kvasir::ErrorCode::kOutOfMemory, "code " << static_cast<int>(code));
  CHECK(cache->length(id, 0) == length, cache->length(id, 0));
  CUDA(cudaFree(hog));
  cache->truncate(id, 500);
  cache->append(id, 0, many.data(), many.data(), 40000);
  cache->truncate(id, 500);
  const auto after = attend(*cache, {id}, queries);
  CHECK(after.size() == before.size(), "outputs");
}

DEVICE_CASE("cache: threads with sequences of their own do not disturb each other") {
  const CachePointer cache = make_cache("uniform", 2);
  const CachePointer alone = make_cache("uniform", 2);
  const auto rows = random_numbers(14, 900 * kRow), queries = random_numbers(15, kQuery);
  const int64_t reference = alone->new_sequence();
  alone->append(reference, 0, rows.data(), rows.data(), 900);
  const auto expected = attend(*alone, {reference}, queries);
  std::vector<std::vector<float>> results(8);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      const int64_t id = cache->new_sequence();
      for (int i = 0; i < 30; ++i) cache->append(id, 0, rows.data() + i * 30 * kRow, rows.data() + i * 30 * kRow, 30);
      results[t] = attend(*cache, {id}, queries);
      cache->release(id);
    });
  }
  for (auto& thread : threads) thread.join();
  for (int t = 0; t < 8; ++t) CHECK(results[t] == expected, "thread " << t);
}
