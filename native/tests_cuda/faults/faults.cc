// Faults of a device, each in a process of its own, for ci/test-gpu to combine:
//
//   kvasir_cuda_faults work SECONDS [tight]
//     caches come and go and are checked against this machine's; device memory stays flat. tight: another process may
//     have taken the memory; refusals are typed errors that change nothing, the refused sequence goes, and work goes on
//   kvasir_cuda_faults hog MEGABYTES SECONDS
//     takes the device's memory but for so much, in turns of half a second
//   kvasir_cuda_faults sticky
//     the device breaks: caches there say so, caches of this machine go on, nothing crashes
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>

#include "check.h"
#include "faults/device_fault.h"
#include "kvasir/kvasir.h"
#include "reference/attention.h"

namespace {

using kvasir::ErrorCode;
using kvasir::Side;
using CachePointer = std::unique_ptr<kvasir::Cache, void (*)(kvasir::Cache*)>;
using Clock = std::chrono::steady_clock;

constexpr int kQueryHeads = 8, kKvHeads = 2, kHeadDim = 128, kRow = kKvHeads * kHeadDim,
              kQuery = kQueryHeads * kHeadDim;

CachePointer make_cache(const char* codec, int bits, const char* backend) {
  const std::unique_ptr<kvasir::CacheConfig, void (*)(kvasir::CacheConfig*)> config(kvasir::CacheConfig::create(1),
                                                                                    kvasir::CacheConfig::destroy);
  config->set_heads(0, kQueryHeads, kKvHeads, kHeadDim);
  config->set_codec(0, Side::kKeys, codec, bits);
  config->set_codec(0, Side::kValues, codec, bits);
  config->set_backend(backend);
  return {kvasir::Cache::create(*config), kvasir::Cache::destroy};
}

// The best backend that is no device.
const char* own_backend() {
  int index = 0;
  while (!std::strcmp(kvasir::backend_name(index), "cuda") || !kvasir::backend_available(index)) ++index;
  return kvasir::backend_name(index);
}

std::vector<float> numbers(uint64_t seed, int64_t count) {
  std::vector<float> all(static_cast<size_t>(count));
  for (float& number : all) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    number = static_cast<float>(static_cast<int32_t>(seed >> 32)) * 0x1p-30f;
  }
  return all;
}

std::vector<float> attend(kvasir::Cache& cache, int64_t id, const std::vector<float>& query) {
  std::vector<float> output(query.size());
  cache.attend(0, &id, 1, 1, query.data(), output.data());
  return output;
}

// The same in double, over the rows that the cache says it holds.
std::vector<float> attend_rows(kvasir::Cache& cache, int64_t id, const std::vector<float>& query) {
  const int64_t tokens = cache.length(id, 0);
  std::vector<float> keys(static_cast<size_t>(tokens * kRow)), values(keys);
  cache.read(id, 0, Side::kKeys, 0, tokens, keys.data());
  cache.read(id, 0, Side::kValues, 0, tokens, values.data());
  const auto outputs =
      reference::attend({kQueryHeads, kKvHeads, kHeadDim}, keys.data(), values.data(), 0, tokens, query.data(), 1)
          .outputs;
  return {outputs.begin(), outputs.end()};
}

double error_between(const std::vector<float>& expected, const std::vector<float>& actual) {
  double error = 0.0, power = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(static_cast<double>(actual[i]) - expected[i], 2);
    power += std::pow(expected[i], 2);
  }
  return std::isnan(error) ? INFINITY : error / power;
}

// One cache's life; returns the number of calls that were refused for want of memory.
int live(int round, bool tight) {
  static constexpr struct {
    const char* codec;
    int bits;
    bool mined;  // means are sums in another order there: what pages hold is not what they hold here
  } kCodecs[] = {{"f16", 16, false},
                 {"uniform", 2, false},
                 {"uniform", 4, false},
                 {"pattern", 2, true},
                 {"progressive", 8, false}};
  const auto& codec = kCodecs[round % 5];
  int refused = 0;
  const auto attempt = [&](auto call) {
    try {
      call();
      return true;
    } catch (const kvasir::Error& error) {
      CHECK(tight && error.code() == ErrorCode::kOutOfMemory, codec.codec << ": " << error.what());
      ++refused;
      return false;
    }
  };
  CachePointer there(nullptr, kvasir::Cache::destroy);
  if (!attempt([&] { there = make_cache(codec.codec, codec.bits, "cuda"); })) return refused;
  const CachePointer here = make_cache(codec.codec, codec.bits, own_backend());
  const auto query = numbers(3, kQuery);
  for (int i = 0; i < 20; ++i) {
    const int64_t tokens = 100 + 377 * i;
    const auto rows = numbers(static_cast<uint64_t>(round * 100 + i), tokens * kRow);
    const int64_t id = there->new_sequence(), reference = here->new_sequence();
    if (attempt([&] { there->append(id, 0, rows.data(), rows.data(), tokens); })) {
      std::vector<float> output, expected;
      if (codec.mined) {
        attempt([&] { expected = attend_rows(*there, id, query); });
      } else {
        here->append(reference, 0, rows.data(), rows.data(), tokens);
        expected = attend(*here, reference, query);
      }
      if (attempt([&] { output = attend(*there, id, query); }) && !expected.empty()) {
        const double error = error_between(expected, output);
        CHECK(error <= 4e-6, codec.codec << " after " << tokens << " tokens is off by " << error);
      }
    } else {
      CHECK(there->length(id, 0) == 0, "a refused append left " << there->length(id, 0) << " tokens");
    }
    there->release(id);
    here->release(reference);
  }
  return refused;
}

void work(double seconds, bool tight) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  size_t after_warming = 0, free = 0, total = 0;
  int round = 0, refused = 0;
  for (; Clock::now() < end || round < 12; ++round) {
    refused += live(round, tight);
    if (tight) continue;
    CUDA(cudaMemGetInfo(&free, &total));
    if (round == 11) after_warming = free;
  }
  std::printf("%d caches, %d calls refused, %zu MiB free after the twelfth and %zu at the end\n", round, refused,
              after_warming >> 20, free >> 20);
}

// Alone on the device, what is free at the end was free before.
void work_alone(double seconds) {
  size_t before = 0, after = 0, total = 0;
  live(0, false);
  CUDA(cudaMemGetInfo(&before, &total));
  work(seconds, false);
  CUDA(cudaMemGetInfo(&after, &total));
  CHECK(after + (size_t{64} << 20) >= before, "device memory fell from " << before << " to " << after);
}

void hog(size_t megabytes, double seconds) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end) {
    size_t free = 0, total = 0;
    CUDA(cudaMemGetInfo(&free, &total));
    void* taken = nullptr;
    const size_t leave = megabytes << 20;
    if (free > leave && cudaMalloc(&taken, free - leave) != cudaSuccess) cudaGetLastError();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    cudaFree(taken);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

void sticky() {
  const CachePointer there = make_cache("uniform", 2, "cuda"), other = make_cache("pattern", 2, "cuda");
  const CachePointer here = make_cache("uniform", 2, "scalar");
  const auto rows = numbers(1, 500 * kRow), query = numbers(2, kQuery);
  const int64_t id = there->new_sequence(), second = other->new_sequence(), third = here->new_sequence();
  there->append(id, 0, rows.data(), rows.data(), 500);
  other->append(second, 0, rows.data(), rows.data(), 500);
  here->append(third, 0, rows.data(), rows.data(), 500);
  const auto before = attend(*here, third, query);
  CHECK(kvasir_faults::break_device() != cudaSuccess, "the device did not break");
  const auto code_of = [](auto call) {
    try {
      call();
    } catch (const kvasir::Error& error) {
      std::printf("        %s\n", error.what());
      return error.code();
    }
    return ErrorCode{};
  };
  CHECK(code_of([&] { attend(*there, id, query); }) == ErrorCode::kDeviceFailed, "attend");
  CHECK(code_of([&] { there->append(id, 0, rows.data(), rows.data(), 500); }) == ErrorCode::kDeviceFailed, "append");
  CHECK(code_of([&] { attend(*other, second, query); }) == ErrorCode::kDeviceFailed, "another cache");
  CHECK(code_of([&] { other->fork(second); }) != ErrorCode::kInvalidArgument, "fork");
  const ErrorCode made = code_of([&] { make_cache("uniform", 2, "cuda")->new_sequence(); });
  CHECK(made == ErrorCode::kDeviceFailed || made == ErrorCode::kUnavailable, "a new cache");
  CHECK(attend(*here, third, query) == before, "a cache on the CPU goes on");
  code_of([&] { there->release(id); });
}

}  // namespace

int main(int argc, char** argv) {
  const auto is = [&](const char* name, int count) { return argc > count && std::strcmp(argv[1], name) == 0; };
  if (is("work", 3)) {
    work(std::atof(argv[2]), true);
  } else if (is("work", 2)) {
    work_alone(std::atof(argv[2]));
  } else if (is("hog", 3)) {
    hog(static_cast<size_t>(std::atoll(argv[2])), std::atof(argv[3]));
  } else if (is("sticky", 1)) {
    sticky();
  } else {
    std::printf("usage: kvasir_cuda_faults work SECONDS [tight] | hog MEGABYTES SECONDS | sticky\n");
    return 2;
  }
  std::printf("%s %s\n", check::failures() == 0 ? "ok     " : "FAILED ", argv[1]);
  return check::failures() == 0 ? 0 : 1;
}
