#include <algorithm>

#include "base/half.h"
#include "kernels/cuda/layout/labels.h"
#include "kernels/cuda/rows/finish.h"
#include "kernels/cuda/rows/half_rows.cuh"

namespace kvasir::cuda {
namespace {

__global__ void turn_keys(const __grid_constant__ KeyTurning turning) {
  const int pairs = turning.head_dim / 2;
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= turning.count * pairs) return;
  const int64_t token = i / pairs;
  const int pair = static_cast<int>(i % pairs);
  double sine, cosine;
  sincos(static_cast<double>(turning.position + token) * turning.frequencies[pair], &sine, &cosine);
  const auto s = static_cast<float>(sine * turning.magnitude), c = static_cast<float>(cosine * turning.magnitude);
  const bool halves = turning.pairs == RopePairs::kHalves;
  const int real = halves ? pair : 2 * pair, imaginary = halves ? pair + pairs : 2 * pair + 1;
  for (int head = 0; head < turning.kv_heads; ++head) {
    float* row = turning.keys + (head * turning.stride + turning.first + token) * turning.head_dim;
    const float a = row[real], b = row[imaginary];
    row[real] = a * c - b * s;
    row[imaginary] = a * s + b * c;
  }
}

__global__ void add_labelled_vectors(const __grid_constant__ LabelledRows rows) {
  const int64_t page = blockIdx.x;
  const int head = blockIdx.y, d = rows.head_dim;
  const VectorTable& table = rows.table;
  const int64_t number = rows.first_page + page;
  const int64_t newer = min(max(number - table.first_page + 1, int64_t{0}), static_cast<int64_t>(table.added));
  const int64_t hidden = max(newer - (kMaxVisible - table.fixed), int64_t{0});
  const uint8_t* labels = rows.pages[page] + rows.label_offset + head * rows.label_stride;
  const uint8_t* vectors = table.vectors + head * table.head_stride;
  const VectorTableLayout layout = {d};
  for (int i = threadIdx.x; i < kPageTokens * d; i += blockDim.x) {
    const int token = i / d, channel = i % d;
    const bool keys = rows.side == Side::kKeys;
    const int label = labels[!rows.fragments ? token : keys ? key_label_byte(token) : value_label_byte(token)];
    if (label == 0) continue;
    const int vector = static_cast<int>(label <= table.fixed ? label - 1 : label - 1 + hidden);
    const int64_t byte = keys ? layout.key_byte(vector, channel) : layout.value_byte(vector, channel);
    float* element = rows.rows + (head * rows.stride + page * kPageTokens + token) * d + channel;
    *element = __fadd_rn(half_to_float(*reinterpret_cast<const uint16_t*>(vectors + byte)), *element);
  }
}

// Four channels a thread.
__global__ void round_quads(const float* rows, int64_t quads, int64_t head_quads, int row_quads, HalfRows out) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= quads) return;
  const float4 x = reinterpret_cast<const float4*>(rows)[i];
  const int64_t token = i % head_quads / row_quads;
  const int64_t at = i / head_quads * out.head_stride + token * out.token_stride + 4 * (i % row_quads);
  store_halves(out, at, x.x, x.y);
  store_halves(out, at + 2, x.z, x.w);
}

constexpr int kThreads = 256;
unsigned blocks_for(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

}  // namespace

cudaError_t launch_turn_keys(const KeyTurning& turning, cudaStream_t stream) {
  if (turning.count == 0) return cudaSuccess;
  turn_keys<<<blocks_for(turning.count * turning.head_dim / 2), kThreads, 0, stream>>>(turning);
  return cudaGetLastError();
}

cudaError_t launch_add_labelled_vectors(const LabelledRows& rows, cudaStream_t stream) {
  if (rows.page_count == 0 || !rows.table.vectors) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(rows.page_count), rows.kv_heads);
  add_labelled_vectors<<<grid, kThreads, 0, stream>>>(rows);
  return cudaGetLastError();
}

cudaError_t round_rows(const RowShape& shape, const float* rows, int64_t count, const HalfRows& out,
                       cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const int row_quads = shape.head_dim / 4;
  const int64_t head_quads = count * row_quads, quads = head_quads * shape.kv_heads;
  round_quads<<<blocks_for(quads), kThreads, 0, stream>>>(rows, quads, head_quads, row_quads, out);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
