// Compiled without contraction (CMakeLists.txt): the arithmetic is the host's, operation by operation.
#include "base/half.h"
#include "codecs/uniform/formula.h"
#include "kernels/cuda/tiered_rows.h"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 256;
static_assert(kThreads >= kMaxHeadDim, "a thread for each channel of the 16-bit tier");
constexpr int kMaxGridColumns = 1 << 20;  // pages that a launch counts in blockIdx.x; more take turns

__device__ __forceinline__ float load_half(const uint8_t* from) {
  return half_to_float(*reinterpret_cast<const uint16_t*>(from));
}

// Where a channel of the keys is: column of its low or only bits, or place in the 16-bit tier; and which of these.
enum class Tier : uint8_t { kTwo, kFour, kSixteen };

struct Shared {
  uint16_t place[kMaxHeadDim];
  Tier tier[kMaxHeadDim];
};

__device__ __forceinline__ int code_of(const uint8_t* block, const TieredBlock& layout, int column, int token) {
  const Place place = column_code_place(column % kColumnsPerChunk, token);
  return block[layout.key_offset(column / kColumnsPerChunk) + place.byte] >> place.bit & 3;
}

__device__ __forceinline__ void decode_keys(const uint8_t* block, const TieredBlock& layout, Shared& shared,
                                            float* rows) {
  const int d = layout.head_dim, columns = layout.key_chunks * kColumnsPerChunk;
  int n4 = 0;
  for (int first = 0; first < columns; first += kThreads) {
    const int x = first + static_cast<int>(threadIdx.x);
    int column = 256 * kPadding;
    if (x < columns) {
      column = *reinterpret_cast<const uint16_t*>(block + layout.key_offset(x / kColumnsPerChunk) +
                                                  column_byte(x % kColumnsPerChunk));
    }
    const int kind = column >> 8;
    if (kind == kTwoBits || kind == kLowBits) {
      shared.place[column & 255] = static_cast<uint16_t>(x);
      shared.tier[column & 255] = kind == kTwoBits ? Tier::kTwo : Tier::kFour;
    }
    n4 += __syncthreads_count(kind == kLowBits);
  }
  if (static_cast<int>(threadIdx.x) < layout.n16) {
    const int channel = block[layout.channels_offset() + threadIdx.x];
    shared.place[channel] = static_cast<uint16_t>(threadIdx.x);
    shared.tier[channel] = Tier::kSixteen;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kTokensPerPage * d; i += kThreads) {
    const int token = i / d, channel = i % d;
    const int place = shared.place[channel];
    const Tier tier = shared.tier[channel];
    if (tier == Tier::kSixteen) {
      rows[i] = load_half(block + layout.elements_offset() + 256 * place + token % 8 * 32 + token / 8 * 2);
      continue;
    }
    const uint8_t* const parameters = block + layout.key_offset(place / kColumnsPerChunk) +
                                      column_parameter_byte(place % kColumnsPerChunk, token / 32);
    int code = code_of(block, layout, place, token), levels = 3;
    if (tier == Tier::kFour) {
      code |= code_of(block, layout, place + n4, token) << 2;
      levels = 15;
    }
    rows[i] = uniform::decode_element(code, load_half(parameters + 2), uniform::step_of(load_half(parameters), levels));
  }
}

__device__ __forceinline__ void decode_values(const uint8_t* block, const TieredBlock& layout, float* rows) {
  const int d = layout.head_dim, levels = (1 << layout.value_bits) - 1;
  const PartLayout part = layout.value_chunk();
  for (int i = threadIdx.x; i < kTokensPerPage * d; i += kThreads) {
    const int token = i / d, channel = i % d;
    const uint8_t* const chunk = block + layout.value_offset(channel / 32) + kPeakBytes;
    const uint8_t* const parameters = chunk + part.parameter_byte(token);
    const Place place = part.code_place(0, token, channel % 32);
    const int code = chunk[part.parameter_bytes() + place.byte] >> place.bit & levels;
    rows[i] = uniform::decode_element(code, load_half(parameters + 2), uniform::step_of(load_half(parameters), levels));
  }
}

__global__ void __launch_bounds__(kThreads) tiered_rows(const __grid_constant__ TieredRows request) {
  __shared__ Shared shared;
  const int head = static_cast<int>(blockIdx.y), side = static_cast<int>(blockIdx.z), d = request.keys.head_dim;
  if (request.sides[side] == nullptr) return;
  for (int64_t page = blockIdx.x; page < request.page_count; page += gridDim.x) {
    const uint8_t* const data = request.pages[page];
    const TieredPlace place = reinterpret_cast<const TieredPlace*>(data)[head];
    const TieredBlock layout = {d, request.values.bits, place.key_chunks, place.n16};
    float* const rows = request.sides[side] + (head * request.page_count + page) * kTokensPerPage * d;
    if (side == 0) {
      __syncthreads();  // the page before is done with what is shared
      decode_keys(data + place.offset, layout, shared, rows);
    } else {
      decode_values(data + place.offset, layout, rows);
    }
  }
}

}  // namespace

cudaError_t launch_tiered_rows(const TieredRows& request, cudaStream_t stream) {
  if (!tiered_supported(request.keys, request.values)) return cudaErrorInvalidValue;
  if (request.page_count <= 0) return cudaSuccess;
  const int64_t columns = request.page_count < kMaxGridColumns ? request.page_count : kMaxGridColumns;
  tiered_rows<<<dim3(static_cast<unsigned>(columns), static_cast<unsigned>(request.kv_heads), 2), kThreads, 0,
                stream>>>(request);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
