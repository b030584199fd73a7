// AttendBatch on memory of the device: any type and any strides, log-sums, graphs. What attention computes is for
// native/tests to say, which run on every backend; here it must be what the same cache computes for this machine.
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/half.h"
#include "check.h"
#include "engine/twin_caches.h"
#include "kvasir/kvasir.h"

namespace {

using kvasir::AttendBatch;
using kvasir::Cache;
using kvasir::CacheConfig;
using kvasir::ElementType;
using kvasir::Side;
using page_case::Buffer;
using twin_caches::CachePointer;
using twin_caches::ConfigPointer;

constexpr int kQueryHeads = 8, kKvHeads = 2, kHeadDim = 64, kQuery = kQueryHeads * kHeadDim;
constexpr int kRow = kKvHeads * kHeadDim;

std::vector<float> random_numbers(int seed, size_t count) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::normal_distribution<float> normal;
  std::vector<float> numbers(count);
  for (float& x : numbers) x = std::round(normal(random) * 16.0f) / 16.0f;  // all types hold them
  return numbers;
}

uint32_t bits_of(float x, ElementType type) {
  if (type == ElementType::kFloat16) return kvasir::float_to_half(x);
  if (type == ElementType::kBFloat16) return kvasir::float_to_bfloat(x);
  return kvasir::float_bits(x);
}
float float_of(uint32_t bits, ElementType type) {
  if (type == ElementType::kFloat16) return kvasir::half_to_float(static_cast<uint16_t>(bits));
  if (type == ElementType::kBFloat16) return kvasir::bfloat_to_float(static_cast<uint16_t>(bits));
  return kvasir::bits_float(bits);
}
size_t bytes_of(ElementType type) { return type == ElementType::kFloat32 ? 4 : 2; }

class Scene {
 public:
  explicit Scene(const std::string& codec, float soft_cap = 0.0f) {
    const ConfigPointer config(CacheConfig::create(1));
    config->set_heads(0, kQueryHeads, kKvHeads, kHeadDim);
    const int bits = codec == "f16" ? 16 : codec == "tiered" ? 2 : 4;
    config->set_codec(0, Side::kKeys, codec.c_str(), bits);
    config->set_codec(0, Side::kValues, codec == "tiered" ? "uniform" : codec.c_str(), bits);
    std::vector<float> logits;
    for (int h = 0; h < kQueryHeads; ++h) logits.push_back(0.5f * static_cast<float>(h) - 1.0f);
    config->set_sink_logits(0, logits.data(), kQueryHeads);
    config->set_soft_cap(0, soft_cap);
    config->set_window(70);
    config->set_backend("cuda");
    cache_.reset(Cache::create(*config));
    CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    for (const int length : {300, 20, 700}) {
      ids_.push_back(cache_->new_sequence());
      append(ids_.back(), length);
    }
  }
  ~Scene() { cudaStreamDestroy(stream_); }
  Scene(const Scene&) = delete;
  Scene& operator=(const Scene&) = delete;

  void append(int64_t id, int tokens) {
    const auto keys = random_numbers(++seed_, static_cast<size_t>(tokens) * kRow);
    const auto values = random_numbers(++seed_, static_cast<size_t>(tokens) * kRow);
    cache_->append(id, 0, keys.data(), values.data(), tokens);
  }

  AttendBatch batch(const std::vector<int>& tokens) const {
    AttendBatch batch;
    batch.sequences = ids_.data();
    batch.count = static_cast<int>(ids_.size());
    batch.tokens = tokens.data();
    return batch;
  }

  Cache& cache() { return *cache_; }
  cudaStream_t stream() const { return stream_; }

 private:
  CachePointer cache_;
  cudaStream_t stream_ = nullptr;
  std::vector<int64_t> ids_;
  int seed_ = 0;
};

// Where element i of [rows][heads][d] is.
struct Place {
  int64_t token_stride, head_stride;
  size_t at(size_t i) const {
    const size_t row = i / kHeadDim;
    return row / kQueryHeads * static_cast<size_t>(token_stride) +
           row % kQueryHeads * static_cast<size_t>(head_stride) + i % kHeadDim;
  }
};

void check_device(Scene& scene, const std::vector<int>& tokens, const std::vector<float>& queries,
                  const std::vector<float>& expected, const std::vector<float>& sums, ElementType in, ElementType out,
                  const Place& place, const std::string& setting) {
  const size_t size = place.at(queries.size() - 1) + 1;
  std::vector<uint8_t> from(size * bytes_of(in), 0x7F);
  for (size_t i = 0; i < queries.size(); ++i) {
    const uint32_t bits = bits_of(queries[i], in);
    std::memcpy(from.data() + place.at(i) * bytes_of(in), &bits, bytes_of(in));
  }
  const Buffer device_queries(from), device_outputs(size * bytes_of(out)), device_sums(sums.size() * sizeof(float));
  AttendBatch batch = scene.batch(tokens);
  batch.queries = {device_queries.data(), in, place.token_stride, place.head_stride};
  batch.outputs = {device_outputs.data(), out, place.token_stride, place.head_stride};
  batch.log_sums = device_sums.as<float>();
  batch.on_device = true;
  batch.stream = scene.stream();
  scene.cache().attend(batch);
  CUDA(cudaStreamSynchronize(scene.stream()));
  const auto got = device_outputs.read(), got_sums = device_sums.read();
  double error = 0.0, power = 0.0;
  std::vector<bool> written(size, false);
  for (size_t i = 0; i < queries.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, got.data() + place.at(i) * bytes_of(out), bytes_of(out));
    const double difference = float_of(bits, out) - static_cast<double>(expected[i]);
    error += difference * difference;
    power += static_cast<double>(expected[i]) * expected[i];
    written[place.at(i)] = true;
  }
  // Half a unit in the last of 8 or 11 bits, or what two kernels may differ by.
  const double limit = out == ElementType::kBFloat16 ? 0x1p-17 : out == ElementType::kFloat16 ? 0x1p-22 : 0x1p-40;
  CHECK(error <= (limit + 4e-6) * power, setting << ": " << error / power);
  for (size_t i = 0; i < size; ++i) {
    if (written[i]) continue;
    CHECK(got[i * bytes_of(out)] == 0xa5, setting << " wrote between rows, at " << i);
    break;
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    float sum;
    std::memcpy(&sum, got_sums.data() + i * sizeof sum, sizeof sum);
    if (std::fabs(sum - sums[i]) <= 8e-3f) continue;
    CHECK(false, setting << ": log-sum " << i << " is " << sum << ", not " << sums[i]);
    break;
  }
}

}  // namespace

DEVICE_CASE("batch: rows on the device, of any type and with any strides") {
  constexpr ElementType kTypes[] = {ElementType::kFloat32, ElementType::kFloat16, ElementType::kBFloat16};
  const std::vector<int> tokens = {1, 5, 130};
  constexpr int kRows = 136;
  const Place places[] = {
      {kQuery, kHeadDim}, {kHeadDim, kRows * kHeadDim}, {kQuery + 3, kHeadDim}, {2 * kHeadDim, 2 * kRows * kHeadDim}};
  for (const char* codec : {"f16", "uniform", "tiered"}) {
    Scene scene(codec);
    const auto queries = random_numbers(99, kRows * kQuery);
    std::vector<float> expected(queries.size()), sums(kRows * kQueryHeads);
    AttendBatch here = scene.batch(tokens);
    here.queries.data = queries.data();
    here.outputs.data = expected.data();
    here.log_sums = sums.data();
    scene.cache().attend(here);
    for (const ElementType in : kTypes) {
      for (const ElementType out : kTypes) {
        for (const Place& place : places) {
          const std::string setting = std::string(codec) + " from " + std::to_string(static_cast<int>(in)) + " to " +
                                      std::to_string(static_cast<int>(out)) + ", strides " +
                                      std::to_string(place.token_stride) + " and " + std::to_string(place.head_stride);
          check_device(scene, tokens, queries, expected, sums, in, out, place, setting);
        }
      }
    }
  }
}

DEVICE_CASE("batch: a graph writes log-sums of sequences that grow, with learned sinks") {
  Scene scene("uniform");
  const std::vector<int> tokens = {1, 1, 1};
  const auto queries = random_numbers(5, 3 * kQuery);
  const Buffer device_queries(page_case::bytes_of(queries)), device_outputs(queries.size() * sizeof(float)),
      device_sums(3 * kQueryHeads * sizeof(float));
  AttendBatch batch = scene.batch(tokens);
  batch.queries = {device_queries.data()};
  batch.outputs = {device_outputs.data()};
  batch.log_sums = device_sums.as<float>();
  batch.on_device = true;
  batch.stream = scene.stream();
  scene.cache().attend(batch);  // makes plans
  cudaGraph_t graph;
  CUDA(cudaStreamBeginCapture(scene.stream(), cudaStreamCaptureModeThreadLocal));
  scene.cache().attend(batch);
  CUDA(cudaStreamEndCapture(scene.stream(), &graph));
  cudaGraphExec_t runnable;
  CUDA(cudaGraphInstantiate(&runnable, graph, 0));
  for (int step = 0; step < 3; ++step) {
    scene.append(batch.sequences[0], 100);
    scene.append(batch.sequences[1], 1);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaGraphLaunch(runnable, scene.stream()));
    CUDA(cudaStreamSynchronize(scene.stream()));
    std::vector<float> expected(queries.size()), sums(3 * kQueryHeads);
    AttendBatch here = scene.batch(tokens);
    here.queries.data = queries.data();
    here.outputs.data = expected.data();
    here.log_sums = sums.data();
    scene.cache().attend(here);
    CHECK(device_outputs.read() == page_case::bytes_of(expected), "outputs at step " << step);
    CHECK(device_sums.read() == page_case::bytes_of(sums), "log-sums at step " << step);
  }
  CUDA(cudaGraphExecDestroy(runnable));
  CUDA(cudaGraphDestroy(graph));
}

DEVICE_CASE("batch: strides cannot be captured, and the refusal harms nothing") {
  Scene scene("uniform");
  const std::vector<int> tokens = {1, 1, 1};
  const Buffer queries(page_case::bytes_of(random_numbers(5, 3 * kQuery))), outputs(3 * kQuery * sizeof(float));
  AttendBatch batch = scene.batch(tokens);
  batch.queries = {queries.data(), ElementType::kFloat32, kHeadDim, 3 * kHeadDim};
  batch.outputs = {outputs.data()};
  batch.on_device = true;
  batch.stream = scene.stream();
  CUDA(cudaStreamBeginCapture(scene.stream(), cudaStreamCaptureModeThreadLocal));
  bool refused = false;
  try {
    scene.cache().attend(batch);
  } catch (const kvasir::Error& error) {
    refused = error.code() == kvasir::ErrorCode::kInvalidArgument;
  }
  CHECK(refused, "strided rows in a graph");
  cudaGraph_t graph;
  CUDA(cudaStreamEndCapture(scene.stream(), &graph));
  CUDA(cudaGraphDestroy(graph));
  scene.cache().attend(batch);
  CUDA(cudaStreamSynchronize(scene.stream()));
}

DEVICE_CASE("batch: soft caps are part of fused kernels, and count as no fallback") {
  for (const char* codec : {"f16", "uniform", "progressive", "pattern", "tiered"}) {
    Scene capped(codec, 2.0f), plain(codec);
    const std::vector<int> tokens = {1, 1, 1};
    const auto queries = random_numbers(7, tokens.size() * kQuery);
    std::vector<float> outputs[2] = {std::vector<float>(queries.size()), std::vector<float>(queries.size())};
    Scene* const scenes[] = {&capped, &plain};
    for (int i = 0; i < 2; ++i) {
      AttendBatch batch = scenes[i]->batch(tokens);
      batch.queries.data = queries.data();
      batch.outputs.data = outputs[i].data();
      scenes[i]->cache().attend(batch);
      const std::unique_ptr<kvasir::CacheStats, twin_caches::Deleter> stats(scenes[i]->cache().stats());
      CHECK(stats->fallback_tiles() == 0 && stats->tiles() > 0, codec << ": " << stats->fallback_tiles());
    }
    CHECK(outputs[0] != outputs[1], codec << ": a cap of 2 is seen");
  }
}

DEVICE_CASE("batch: trees of guesses go to fused kernels and to rows, and count as no fallback") {
  for (const char* codec : {"f16", "uniform", "tiered"}) {
    Scene scene(codec);
    const std::vector<int> tokens = {3, 5, 1};
    const std::vector<uint64_t> masks = {1, 3, 5, 1, 2, 5, 10, 17, 1};
    const auto queries = random_numbers(7, masks.size() * kQuery);
    std::vector<float> outputs(queries.size()), sums(masks.size() * kQueryHeads);
    AttendBatch batch = scene.batch(tokens);
    batch.queries.data = queries.data();
    batch.outputs.data = outputs.data();
    batch.log_sums = sums.data();
    batch.masks = masks.data();
    scene.cache().attend(batch);
    const std::unique_ptr<kvasir::CacheStats, twin_caches::Deleter> stats(scene.cache().stats());
    CHECK(stats->fallback_tiles() == 0, codec << ": " << stats->fallback_tiles());
    CHECK(stats->tiles() > 0, codec);
    // The last token of the last sequence has no tree: what it gets does not depend on those of the others.
    std::vector<float> plain(queries.size());
    AttendBatch without = scene.batch(tokens);
    without.queries.data = queries.data();
    without.outputs.data = plain.data();
    scene.cache().attend(without);
    double error = 0.0, power = 0.0;
    for (size_t i = 8 * kQuery; i < queries.size(); ++i) {
      error += std::pow(static_cast<double>(plain[i]) - outputs[i], 2);
      power += std::pow(static_cast<double>(plain[i]), 2);
    }
    CHECK(error <= 4e-6 * power, codec << ": " << error / power);
  }
}
