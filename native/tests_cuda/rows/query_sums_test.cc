// Query sums on the device against the rule in double.
#include "kernels/cuda/rows/query_sums.h"

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstring>
#include <random>

#include "check.h"
#include "reference/half.h"

namespace {

using namespace kvasir::cuda;

DEVICE_CASE("query sums: means of magnitudes, window after window") {
  constexpr QueryShape kShape = {3, 5, 48};
  constexpr int kCount = 2, kTokens = 19, kChannels = 3 * 48;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const kvasir::ElementType type :
       {kvasir::ElementType::kFloat32, kvasir::ElementType::kFloat16, kvasir::ElementType::kBFloat16}) {
    const size_t numbers = static_cast<size_t>(kCount) * kTokens * 3 * 5 * 48;
    std::vector<float> queries;
    std::vector<uint16_t> narrow;
    for (size_t i = 0; i < numbers; ++i) {
      const float x = i % 97 == 5 ? INFINITY : i % 89 == 7 ? NAN : normal(random);
      if (type == kvasir::ElementType::kFloat32) {
        queries.push_back(x);
        continue;
      }
      uint32_t bits;
      std::memcpy(&bits, &x, 4);
      narrow.push_back(type == kvasir::ElementType::kFloat16 ? reference::half_nearest(x)
                                                             : static_cast<uint16_t>(bits >> 16));
      queries.push_back(static_cast<float>(type == kvasir::ElementType::kFloat16
                                               ? reference::half_value(narrow.back())
                                               : reference::bfloat_value(narrow.back())));
    }
    void* device_queries;
    constexpr int kSize = kChannels + kChannels / 2 + 1;  // doubles: sums, what is known, the count
    double* sums;
    float *means, *scaling;
    CUDA(cudaMalloc(&device_queries, 4 * numbers));
    CUDA(cudaMalloc(reinterpret_cast<void**>(&sums), sizeof(double) * kCount * kSize));
    CUDA(cudaMalloc(reinterpret_cast<void**>(&means), 4 * kChannels));
    CUDA(cudaMalloc(reinterpret_cast<void**>(&scaling), 4 * kChannels));
    CUDA(cudaMemset(sums, 0xa5, sizeof(double) * kCount * kSize));
    const std::vector<float> ones(kChannels, 1.0f), twos(kChannels, 2.0f);
    CUDA(cudaMemcpy(scaling, twos.data(), 4 * kChannels, cudaMemcpyHostToDevice));
    double* const both[] = {sums, sums + kSize};
    for (double* each : both) CUDA(launch_clear_queries(kShape, each, nullptr));
    CUDA(cudaMemcpy(device_queries, narrow.empty() ? static_cast<const void*>(queries.data()) : narrow.data(),
                    (narrow.empty() ? 4 : 2) * numbers, cudaMemcpyHostToDevice));
    const auto read = [&](const float* factor) {
      CUDA(launch_read_query_means(kShape, both[1], factor, means, nullptr));
      std::vector<float> out(kChannels);
      CUDA(cudaMemcpy(out.data(), means, 4 * kChannels, cudaMemcpyDeviceToHost));
      return out;
    };
    CHECK(read(nullptr) == ones, "nothing seen yet");
    CHECK(read(scaling) == twos, "scaled");
    CUDA(launch_read_query_means(kShape, nullptr, scaling, means, nullptr));
    std::vector<float> never(kChannels);
    CUDA(cudaMemcpy(never.data(), means, 4 * kChannels, cudaMemcpyDeviceToHost));
    CHECK(never == twos, "nothing was ever seen");
    CUDA(launch_add_queries(kShape, device_queries, type, kTokens, kCount, both, nullptr));
    CUDA(launch_add_queries(kShape, device_queries, type, kTokens, kCount, both, nullptr));
    const std::vector<float> got = read(nullptr);
    double worst = 0.0;
    for (int i = 0; i < kChannels; ++i) {
      double sum = 0.0;
      for (int t = 0; t < kTokens; ++t) {
        for (int r = 0; r < 5; ++r) {
          const size_t row = ((static_cast<size_t>(1) * kTokens + t) * 3 + i / 48) * 5 + r;
          const float x = queries[row * 48 + i % 48];
          if (std::isfinite(x)) sum += 2.0 * std::fabs(static_cast<double>(x));
        }
      }
      const double mean = sum / (2 * kTokens * 5);
      worst = std::max(worst, std::fabs(got[i] - mean) / mean);
    }
    // Five float additions and one rounding.
    CHECK(worst <= 6 * std::ldexp(1.0, -24), worst);
    CUDA(launch_settle_queries(kShape, both[1], nullptr));
    CHECK(read(nullptr) == got, "what was seen is known");
    std::vector<double> left(kChannels, 1.0);
    CUDA(cudaMemcpy(left.data(), both[1], sizeof(double) * kChannels, cudaMemcpyDeviceToHost));
    CHECK(left == std::vector<double>(kChannels, 0.0), "the window begins anew");
    CUDA(launch_settle_queries(kShape, both[1], nullptr));
    CHECK(read(nullptr) == got, "nothing was seen since then");
    for (void* pointer :
         {device_queries, static_cast<void*>(sums), static_cast<void*>(means), static_cast<void*>(scaling)}) {
      cudaFree(pointer);
    }
  }
}

}  // namespace
