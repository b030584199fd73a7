// The arithmetic is the host's, operation by operation.
#include "base/half.h"
#include "codecs/commvq/model.h"
#include "kernels/cuda/commvq/rows.h"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxKeyStages = 64;

struct KeyShapeOnDevice {
  int kv_heads, stages, index_bits, head_dim;
  bool neighbours;
};

// A block takes one kv head of a page. Tables: [kv_heads][head_dim / 16][stages][entries][16].
__global__ void __launch_bounds__(kThreads)
    commvq_key_rows(KeyShapeOnDevice shape, const uint16_t* tables, RowUnpacking unpacking) {
  __shared__ uint16_t codes[kMaxKeyStages][kPageTokens];
  const int head = blockIdx.y, half = shape.head_dim / 2, entries = 1 << shape.index_bits;
  const int code_bits = 2 * shape.index_bits, stage_bytes = kPageTokens * code_bits / 8;
  const uint16_t* const head_tables = tables + static_cast<int64_t>(head) * shape.head_dim * shape.stages * entries;
  for (int64_t page = blockIdx.x; page < unpacking.page_count; page += gridDim.x) {
    const uint8_t* const part = unpacking.pages[page] + unpacking.offset;
    const uint8_t* const packed = part + commvq::kScaleBytes + static_cast<int64_t>(head) * shape.stages * stage_bytes;
    __syncthreads();
    for (int i = threadIdx.x; i < shape.stages * kPageTokens; i += kThreads) {
      const int bit = i % kPageTokens * code_bits;
      const uint8_t* from = packed + i / kPageTokens * stage_bytes + bit / 8;
      // A code begins at a byte or in the middle of one, and ends within two bytes.
      codes[i / kPageTokens][i % kPageTokens] = static_cast<uint16_t>(
          (from[0] | (bit % 8 + code_bits > 8 ? from[1] << 8 : 0)) >> bit % 8 & ((1 << code_bits) - 1));
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kPageTokens * half; i += kThreads) {
      const int token = i / half, j = i % half;
      const auto element = [&](int stage, int entry, int channel) {
        const int64_t row = (static_cast<int64_t>(channel / commvq::kChunk) * shape.stages + stage) * entries + entry;
        return half_to_float(__ldg(head_tables + row * commvq::kChunk + channel % commvq::kChunk));
      };
      float re = 0.0f, im = 0.0f;
      for (int s = 0; s < shape.stages; ++s) {
        const int a = codes[s][token] & (entries - 1), b = codes[s][token] >> shape.index_bits;
        re += element(s, a, j) - element(s, b, half + j);
        im += element(s, a, half + j) + element(s, b, j);
      }
      const float norm = half_to_float(reinterpret_cast<const uint16_t*>(part)[token]);
      float* const row = unpacking.rows + ((head * unpacking.page_count + page) * kPageTokens + token) * shape.head_dim;
      row[shape.neighbours ? 2 * j : j] = re * norm;
      row[shape.neighbours ? 2 * j + 1 : half + j] = im * norm;
    }
  }
}

constexpr int kValueTokens = 16;

// A block takes 16 tokens of a kv head of a page, a thread one channel of them. Tables: [kv_heads][codes][head_dim].
__global__ void __launch_bounds__(kMaxHeadDim)
    commvq_value_rows(int codes, int head_dim, const uint16_t* tables, RowUnpacking unpacking) {
  const int head = blockIdx.y, first = blockIdx.z * kValueTokens, channel = threadIdx.x;
  const uint16_t* const table = tables + static_cast<int64_t>(head) * codes * head_dim + channel;
  for (int64_t page = blockIdx.x; page < unpacking.page_count; page += gridDim.x) {
    const uint8_t* const part = unpacking.pages[page] + unpacking.offset;
    const auto* bits = reinterpret_cast<const uint32_t*>(part + commvq::kScaleBytes) + first / 32 * 16;
    float sums[kValueTokens] = {};
    for (int n = 0; n < codes; ++n) {
      const float element = half_to_float(__ldg(table + static_cast<int64_t>(n) * head_dim));
      // The word of 32 tokens: bit 8 (t % 4) + t / 4.
      const uint32_t word = __ldg(bits + n / 16 * 64 + n % 16) >> first % 32 / 4;
#pragma unroll
      for (int t = 0; t < kValueTokens; ++t) sums[t] += (word >> (8 * (t % 4) + t / 4) & 1) != 0 ? element : 0.0f;
    }
    const auto* gains = reinterpret_cast<const uint16_t*>(part) + first;
    float* const row =
        unpacking.rows + ((head * unpacking.page_count + page) * kPageTokens + first) * head_dim + channel;
#pragma unroll
    for (int t = 0; t < kValueTokens; ++t) row[static_cast<int64_t>(t) * head_dim] = sums[t] * half_to_float(gains[t]);
  }
}

}  // namespace

cudaError_t launch_commvq_key_rows(const commvq::KeyPage& page, int head_dim, RopePairs pairs, const uint16_t* tables,
                                   const RowUnpacking& unpacking, cudaStream_t stream) {
  if (page.stages < 1 || page.stages > kMaxKeyStages) return cudaErrorInvalidValue;
  if (unpacking.page_count <= 0) return cudaSuccess;
  const KeyShapeOnDevice shape = {page.kv_heads, page.stages, page.index_bits, head_dim,
                                  pairs == RopePairs::kNeighbours};
  commvq_key_rows<<<dim3(grid_columns(unpacking.page_count), page.kv_heads), kThreads, 0, stream>>>(shape, tables,
                                                                                                    unpacking);
  return cudaGetLastError();
}

cudaError_t launch_commvq_value_rows(const commvq::ValuePage& page, int kv_heads, int head_dim, const uint16_t* tables,
                                     const RowUnpacking& unpacking, cudaStream_t stream) {
  if (head_dim < 1 || head_dim > kMaxHeadDim) return cudaErrorInvalidValue;
  if (unpacking.page_count <= 0) return cudaSuccess;
  const dim3 grid(grid_columns(unpacking.page_count), kv_heads, kPageTokens / kValueTokens);
  commvq_value_rows<<<grid, head_dim, 0, stream>>>(page.codes, head_dim, tables, unpacking);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
