// Seals CommVQ's values: rows to slopes, bits (value_parts.h), gains and planes. Compiled without contraction
// (CMakeLists.txt): the arithmetic is the host's, operation by operation.
#include "base/half.h"
#include "kernels/cuda/commvq/value_parts.h"
#include "kernels/cuda/commvq/value_table.cuh"
#include "kernels/cuda/layout/page_list.h"
#include "kernels/cuda/pages/pages_at_once.h"
#include "kernels/cuda/primitives/in_order_product.cuh"
#include "kernels/cuda/rows/staged_tokens.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kWarps = 8;

__global__ void __launch_bounds__(256) copy_diagonal(const float* gram, int codes, float* diagonal) {
  const int n = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (n < codes) diagonal[n] = gram[static_cast<int64_t>(n) * codes + n];
}

// What bits say already, or nothing, less the row divided by its root mean square. A warp for each token.
__global__ void __launch_bounds__(32 * kWarps) take_rows(StagedTokens tokens, bool nothing, float* sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const double square = mean_square(tokens, token, lane);
  const float divisor = square > 0.0 ? static_cast<float>(sqrt(square)) : 1.0f;
  float* const row = sums + token * tokens.kv_heads * tokens.head_dim;
  tokens.for_quads(token, lane, [&](int first, const float4& four) {
    auto* const to = reinterpret_cast<float4*>(row + first);
    const float4 said = nothing ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : *to;
    *to = make_float4(said.x - four.x / divisor, said.y - four.y / divisor, said.z - four.z / divisor,
                      said.w - four.w / divisor);
  });
}

// The gain that leaves the least of a row beside gain * sum. A warp for each token.
__global__ void __launch_bounds__(32 * kWarps)
    store_gains(const __grid_constant__ PageList<uint8_t> parts, StagedTokens tokens, const float* sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const float* const row = sums + token * tokens.kv_heads * tokens.head_dim;
  double product = 0.0, square = 0.0;
  const auto add = [&](float x, float y) {
    const auto sum = static_cast<double>(y);
    product += static_cast<double>(x) * sum;
    square += sum * sum;
  };
  tokens.for_quads(token, lane, [&](int first, const float4& four) {
    const auto sum = *reinterpret_cast<const float4*>(row + first);
    add(four.x, sum.x);
    add(four.y, sum.y);
    add(four.z, sum.z);
    add(four.w, sum.w);
  });
  product = sum_over_warp(product);
  square = sum_over_warp(square);
  if (lane != 0) return;
  const double gain = square > 0.0 ? product / square : 0.0;
  auto* const gains = reinterpret_cast<uint16_t*>(parts.pages[token / kPageTokens]);
  gains[token % kPageTokens] = float_to_half(static_cast<float>(fmin(fmax(gain, -65504.0), 65504.0)));
}

// A warp turns 32 codes of 32 tokens round. A lane reads the token whose bit the plane has in its place.
__global__ void __launch_bounds__(32)
    store_planes(const __grid_constant__ PageList<uint8_t> parts, int codes, const uint32_t* bits, int64_t words) {
  const int lane = static_cast<int>(threadIdx.x), word = static_cast<int>(blockIdx.y);
  const int page = static_cast<int>(blockIdx.x) / 4, span = static_cast<int>(blockIdx.x) % 4;  // of 32 tokens
  const int64_t token = static_cast<int64_t>(blockIdx.x) * 32 + 4 * (lane % 8) + lane / 8;
  const uint32_t own = bits[token * words + word];
  uint32_t turned = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const uint32_t column = __ballot_sync(0xffffffffu, (own >> i & 1) != 0);
    if (lane == i) turned = column;
  }
  const int code = 32 * word + lane;
  const CodePlane plane = {1, 0, kPageTokens, codes};
  if (code >= codes) return;
  uint8_t* const out = parts.pages[page] + commvq::kScaleBytes + plane.byte_of(32 * span, code);
  *reinterpret_cast<uint32_t*>(out) = turned;
}

int64_t words_of(const ValueSearch& search) { return (search.page.codes + 31) / 32; }

size_t token_scratch(const ValueSearch& search) {
  const size_t floats =
      static_cast<size_t>(search.width()) + search.page.codes + (search.has_network ? search.network.hidden : 0);
  return sizeof(float) * floats + sizeof(uint32_t) * static_cast<size_t>(words_of(search));
}

ValueScratch scratch_at(const ValueSearch& search, int64_t tokens, void* memory) {
  ValueScratch scratch = {};
  scratch.words = words_of(search);
  scratch.sums = static_cast<float*>(memory);
  scratch.slopes = scratch.sums + tokens * search.width();
  scratch.bits = reinterpret_cast<uint32_t*>(scratch.slopes + tokens * search.page.codes);
  scratch.hidden = reinterpret_cast<float*>(scratch.bits + tokens * scratch.words);
  return scratch;
}

cudaError_t seal(const ValueSearch& search, const PageList<uint8_t>& parts, const StagedTokens& staged, int64_t tokens,
                 const ValueScratch& scratch, cudaStream_t stream) {
  const int width = search.width(), codes = search.page.codes;
  const ValueTable table(search.tables, codes, search.head_dim);
  const auto token_blocks = static_cast<unsigned>(tokens / kWarps);
  const auto sum_up = [&] {
    return in_order_product(BitMatrix{scratch.bits, scratch.words}, tokens, TableColumns{table}, width, codes,
                            StoreFloats{scratch.sums, width}, stream);
  };
  cudaError_t error = cudaSuccess;
  if (search.has_network) error = run_value_network(search, staged.rows, staged.head_elements, tokens, scratch, stream);
  if (error == cudaSuccess && search.flips > 0) {
    if (search.has_network) error = sum_up();
    if (error != cudaSuccess) return error;
    take_rows<<<token_blocks, 32 * kWarps, 0, stream>>>(staged, !search.has_network, scratch.sums);
    error = in_order_product(FloatMatrix{scratch.sums, width}, tokens, TableRows{table}, codes, width,
                             StoreFloats{scratch.slopes, codes}, stream);
    if (error == cudaSuccess && !search.has_network) error = decide_bits(search, tokens, scratch, stream);
    if (error == cudaSuccess) error = flip_bits(search, tokens, scratch, stream);
  }
  if (error == cudaSuccess) error = sum_up();
  if (error != cudaSuccess) return error;
  store_gains<<<token_blocks, 32 * kWarps, 0, stream>>>(parts, staged, scratch.sums);
  store_planes<<<dim3(static_cast<unsigned>(tokens / 32), static_cast<unsigned>(scratch.words)), 32, 0, stream>>>(
      parts, codes, scratch.bits, scratch.words);
  return cudaGetLastError();
}

bool supported(const ValueSearch& search) {
  return search.kv_heads >= 1 && search.head_dim >= 16 && search.head_dim % 16 == 0 && search.page.codes >= 16 &&
         search.page.codes <= kMaxValueCodes && search.page.codes % 16 == 0 && search.flips >= 0 &&
         (search.has_network ? search.network.hidden > 0 && search.network.hidden % 16 == 0 : search.flips > 0);
}

}  // namespace

size_t value_gram_bytes(const ValueSearch& search) {
  const auto codes = static_cast<size_t>(search.page.codes);
  return sizeof(float) * (codes * codes + codes);
}

cudaError_t value_gram(const ValueSearch& search, float* gram, cudaStream_t stream) {
  if (!supported(search)) return cudaErrorInvalidValue;
  const int codes = search.page.codes;
  const TableRows rows = {ValueTable(search.tables, codes, search.head_dim)};
  const cudaError_t error =
      in_order_product(rows, codes, rows, codes, search.width(), StoreFloats{gram, codes}, stream);
  if (error != cudaSuccess) return error;
  copy_diagonal<<<(codes + 255) / 256, 256, 0, stream>>>(gram, codes, gram + static_cast<int64_t>(codes) * codes);
  return cudaGetLastError();
}

size_t value_scratch_bytes(const ValueSearch& search, int64_t page_count) {
  const size_t page_bytes = kPageTokens * token_scratch(search);
  return page_bytes * static_cast<size_t>(pages_at_once(page_bytes, page_count));
}

cudaError_t seal_commvq_values(const ValueSearch& search, const CommVqSealRequest& request, cudaStream_t stream) {
  if (!supported(search) || !request.has_rows()) return cudaErrorInvalidValue;
  const auto launch = [&](const PageList<uint8_t>& list, int count, int64_t first) {
    const int64_t tokens = int64_t{count} * kPageTokens;
    const StagedTokens staged = {request.staging.sides[1] + first * kPageTokens * search.head_dim,
                                 request.staging.rows * search.head_dim, search.kv_heads, search.head_dim};
    return seal(search, list, staged, tokens, scratch_at(search, tokens, request.scratch), stream);
  };
  return for_page_lists(request.parts, request.page_count, launch,
                        pages_at_once(kPageTokens * token_scratch(search), request.page_count));
}

}  // namespace kvasir::cuda
