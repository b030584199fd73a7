// Rows decoded on the device, against the definition: bit for bit, where the order of additions is the format's.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "codecs/tiered/format.h"
#include "commvq/attend_case.h"
#include "kernels/cuda/commvq/rows.h"
#include "kernels/cuda/tiered/rows.h"
#include "reference/tiered_page.h"

namespace {

using kvasir::RopePairs;
using namespace kvasir::cuda;

template <class T>
T* upload(const std::vector<T>& values, std::vector<void*>& memory) {
  void* to = nullptr;
  CUDA(cudaMalloc(&to, sizeof(T) * values.size() + 16));
  CUDA(cudaMemcpy(to, values.data(), sizeof(T) * values.size(), cudaMemcpyHostToDevice));
  memory.push_back(to);
  return static_cast<T*>(to);
}

std::vector<float> download(const float* from, size_t count) {
  CUDA(cudaDeviceSynchronize());
  std::vector<float> values(count);
  CUDA(cudaMemcpy(values.data(), from, 4 * count, cudaMemcpyDeviceToHost));
  return values;
}

// [tokens of all pages][heads][d] in double against [heads][tokens][d]: the largest error in units of the largest
// element.
double worst_error(const std::vector<double>& expected, const std::vector<float>& got, int heads, int d) {
  const size_t tokens = expected.size() / heads / d;
  double worst = 0.0, largest = 0.0;
  for (size_t t = 0; t < tokens; ++t) {
    for (int h = 0; h < heads; ++h) {
      for (int c = 0; c < d; ++c) {
        const double x = expected[(t * heads + h) * d + c], y = got[(static_cast<size_t>(h) * tokens + t) * d + c];
        worst = std::max(worst, std::isnan(y) ? 1e30 : std::fabs(x - y));
        largest = std::max(largest, std::fabs(x));
      }
    }
  }
  return worst / largest;
}

DEVICE_CASE("canonical rows: CommVQ's keys and values") {
  const commvq_case::Setting settings[] = {{2, 1, 128, 11, 64, 256},
                                           {3, 1, 80, 5, 32, 48, RopePairs::kNeighbours},
                                           {1, 1, 256, 64, 16, 1040},
                                           {8, 1, 32, 3, 64, 64}};
  for (const commvq_case::Setting& s : settings) {
    commvq_case::Scene scene(s);
    std::vector<void*> memory;
    std::vector<const uint8_t*> pages;
    std::vector<double> keys, values;
    for (int p = 0; p < 3; ++p) {
      const commvq_case::Page page = scene.make_page();
      pages.push_back(upload(page.bytes, memory));
      keys.insert(keys.end(), page.keys.begin(), page.keys.end());
      values.insert(values.end(), page.values.begin(), page.values.end());
    }
    const std::vector<float> poison(keys.size(), NAN);
    float* const rows = upload(poison, memory);
    RowUnpacking unpacking = {upload(pages, memory), 3, 0, rows};
    CUDA(launch_commvq_key_rows(scene.keys.page, s.head_dim, s.pairs, upload(scene.keys.memory, memory), unpacking,
                                nullptr));
    // A float32 sum of 2 n terms of size a is right to n a 2^-23, far above which no element comes.
    const double key_error = worst_error(keys, download(rows, keys.size()), s.kv_heads, s.head_dim);
    CHECK(key_error <= s.stages * std::ldexp(1.0, -22), s.describe() << ": keys " << key_error);
    CUDA(cudaMemcpy(rows, poison.data(), 4 * poison.size(), cudaMemcpyHostToDevice));
    unpacking.offset = static_cast<int64_t>(scene.keys.page.bytes());
    CUDA(launch_commvq_value_rows(scene.values.page, s.kv_heads, s.head_dim, upload(scene.values.memory, memory),
                                  unpacking, nullptr));
    const double value_error = worst_error(values, download(rows, keys.size()), s.kv_heads, s.head_dim);
    CHECK(value_error <= s.codes * std::ldexp(1.0, -24), s.describe() << ": values " << value_error);
    for (void* pointer : memory) cudaFree(pointer);
  }
}

DEVICE_CASE("canonical rows: tiered keys, bit for bit") {
  constexpr int kHeads = 3;
  for (const int d : {32, 80, 128, 256}) {
    for (const reference::Options& options : reference::tiered::variants(reference::Side::kKeys, d)) {
      const reference::PageShape shape = reference::tiered::shape(reference::Side::kKeys, 2, d, options);
      kvasir::PageFormat format;
      format.head_dim = d;
      format.group = shape.group;
      format.numbers[kvasir::tiered::kParameterBits] =
          8.0f * static_cast<float>(reference::tiered::parameter_size(shape));
      format.grid = shape.cells ? kvasir::Grid::kCells : kvasir::Grid::kEnds;
      std::mt19937 random(static_cast<unsigned>(d));
      std::normal_distribution<double> normal;
      std::vector<void*> memory;
      std::vector<const uint8_t*> pages;
      std::vector<float> expected;  // [pages][heads][128][d]
      for (int p = 0; p < 2; ++p) {
        std::vector<uint32_t> offsets;
        std::vector<uint8_t> parts;
        for (int h = 0; h < kHeads; ++h) {
          std::vector<float> rows;
          for (int i = 0; i < 128 * d; ++i) {
            const double size = i % d % 11 == 3 ? 6.0 : i % d % 5 == 1 ? 2.5 : 1.0;
            rows.push_back(static_cast<float>(reference::half_value(reference::half_nearest(size * normal(random)))));
          }
          const std::vector<uint8_t> part = reference::tiered::encode(shape, rows.data());
          const std::vector<float> decoded = reference::tiered::decode(shape, part.data()).rows;
          expected.insert(expected.end(), decoded.begin(), decoded.end());
          offsets.push_back(64 + static_cast<uint32_t>(parts.size()));
          parts.insert(parts.end(), part.begin(), part.end());
        }
        offsets.resize(16, 0);
        std::vector<uint8_t> page(64);
        std::memcpy(page.data(), offsets.data(), 64);
        page.insert(page.end(), parts.begin(), parts.end());
        pages.push_back(upload(page, memory));
      }
      float* const rows = upload(std::vector<float>(expected.size(), NAN), memory);
      CUDA(launch_tiered_key_rows(format, kHeads, {upload(pages, memory), 2, 0, rows}, nullptr));
      const std::vector<float> got = download(rows, expected.size());
      const size_t block = static_cast<size_t>(128) * d;
      for (size_t p = 0; p < 2; ++p) {
        for (size_t h = 0; h < kHeads; ++h) {
          const bool equal =
              std::memcmp(expected.data() + (p * kHeads + h) * block, got.data() + (h * 2 + p) * block, 4 * block) == 0;
          CHECK(equal, "d=" << d << " page " << p << " head " << h);
        }
      }
      for (void* pointer : memory) cudaFree(pointer);
    }
  }
}

}  // namespace
