// Times what sealing with patterns adds: k-means and matching, as microseconds a layer.
//
//   pattern_bench [--kv-heads 8] [--head-dim 128] [--tokens 32768] [--patterns 32] [--steps 10] [--bits 2]
//
// Rows are random, near random vectors. A graph of launches is replayed and timed with events; the figure is the
// median.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "arguments.h"
#include "fill.cuh"
#include "kernels/cuda/pattern/kmeans.h"
#include "kernels/cuda/pattern/seal.h"
#include "launch_timing.h"

namespace {

using namespace kvasir::cuda;

// Rows of 64 kinds, with more noise than difference between kinds: k-means has work to do in every step.
__global__ void fill_rows_near(__half* rows, int64_t count, int d, uint64_t seed) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    const uint32_t kind = bench::hashed(seed ^ static_cast<uint64_t>(i / d)) % 64;
    const float centre = bench::unit(bench::hashed(kind * 1000 + i % d));
    rows[i] = __float2half_rn(0.5f * centre + bench::unit(bench::hashed(seed + static_cast<uint64_t>(i))));
  }
}

template <class Work>
double median_us(int launches, const Work& work) {
  work(nullptr);
  return bench::time_graph(launches, 12, 2, [&](int, cudaStream_t stream) { work(stream); }).us;
}

}  // namespace

int main(int argc, char** argv) {
  int heads = 8, d = 128, tokens = 32768, patterns = 32, steps = 10, bits = 2;
  bench::parse(argc, argv,
               {{"--kv-heads", &heads},
                {"--head-dim", &d},
                {"--tokens", &tokens},
                {"--patterns", &patterns},
                {"--steps", &steps},
                {"--bits", &bits}});
  const int pages = tokens / kvasir::kPageTokens;
  tokens = pages * kvasir::kPageTokens;
  const HeadLayout layout = {d, bits, bits};
  const size_t page_bytes = static_cast<size_t>(kBothLabelBytes + layout.bytes()) * heads;
  const int64_t elements = static_cast<int64_t>(heads) * tokens * d, stride = VectorTableLayout{d}.bytes(patterns);
  const RowShape shape = {heads, d};
  void *rows[2], *tables[2], *memory, *scratch;
  for (int side = 0; side < 2; ++side) {
    CUDA(cudaMalloc(&rows[side], 2 * elements));
    fill_rows_near<<<1024, 256>>>(static_cast<__half*>(rows[side]), elements, d, 100 + side);
    CUDA(cudaMalloc(&tables[side], stride * heads));
    CUDA(cudaMemset(tables[side], 0, stride * heads));
  }
  CUDA(cudaMalloc(&memory, page_bytes * pages));
  CUDA(cudaMalloc(&scratch, mining_scratch_bytes(shape, tokens)));
  const Staging staging = {{static_cast<uint16_t*>(rows[0]), static_cast<uint16_t*>(rows[1])}, tokens};
  std::vector<uint8_t*> addresses;
  for (int p = 0; p < pages; ++p) addresses.push_back(static_cast<uint8_t*>(memory) + page_bytes * p);
  CUDA(cudaDeviceSynchronize());
  std::printf("%d kv heads, head dim %d, %d tokens, %d patterns\n", heads, d, tokens, patterns);
  for (const int sides : {1, 2}) {
    MiningRequest mining = {shape, staging, 0, tokens, tokens, patterns, steps, 0.0f, 1, {}, scratch};
    for (int side = 0; side < sides; ++side) mining.vectors[side] = {static_cast<uint8_t*>(tables[side]), stride};
    const double us = median_us(4, [&](cudaStream_t stream) { CUDA(mine_patterns(mining, stream)); });
    mining.max_steps = 1;
    const double one = median_us(4, [&](cudaStream_t stream) { CUDA(mine_patterns(mining, stream)); });
    std::printf("k-means, %d side%s, %d steps: %8.1f us, of which seeding and one step %.1f\n", sides,
                sides == 2 ? "s" : "", steps, us, one);
  }
  for (int which = 0; which < 3; ++which) {
    PatternSealRequest request = {};
    request.shape = shape;
    for (int side = 0; side < 2; ++side) {
      request.bits[side] = bits;
      request.options[side].present = which == 2 || which == side;
      request.options[side].ratio = 0.9f;
      request.tables[side] = {static_cast<uint8_t*>(tables[side]), stride, patterns, 0, 1 << 30, 0};
    }
    request.staging = staging;
    request.pages = addresses.data();
    request.page_count = pages;
    const double us = median_us(8, [&](cudaStream_t stream) { CUDA(seal_pattern_pages(request, stream)); });
    const char* const names[] = {"keys", "values", "both sides"};
    std::printf("matching, labels and %d-bit residuals, %s: %8.1f us\n", bits, names[which], us);
  }
  return 0;
}
