// Codes of CommVQ's keys: KeyCodebook's greedy search and its refinements. Compiled without contraction
// (CMakeLists.txt): the arithmetic is the host's, operation by operation.
//
// A block takes 32 tokens of one kv head through all stages, a lane for each token. What the stages so far have left
// over stays in shared memory, [channel][token]; a stage's table joins it, [channel][entry]. Then
//
//   products    a thread has four tokens and four entries, whose sums over the channels it keeps in registers
//   nearest     a warp has a quarter of the a; its lanes look for the least over all b
//
// Refinements are launches of their own, because a page's head goes on as long as one of its 128 tokens changes; rows
// wait in the scratch, codes in the page.
#include <cmath>

#include "base/half.h"
#include "kernels/cuda/commvq_encode.h"
#include "kernels/cuda/page_list.cuh"
#include "kernels/cuda/pages_at_once.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/staged_tokens.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kTokens = 32;  // of a block: a lane each
constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kTilesPerPage = kTokensPerPage / kTokens;
constexpr int kSide = 4;  // tokens and entries of a thread's products

__device__ __forceinline__ float4 load_four(const float* from) { return *reinterpret_cast<const float4*>(from); }

__device__ __forceinline__ float4 load_four(const uint16_t* from) {
  const uint2 words = *reinterpret_cast<const uint2*>(from);
  const float2 low = halves_to_floats(words.x), high = halves_to_floats(words.y);
  return make_float4(low.x, low.y, high.x, high.y);
}

__device__ __forceinline__ float half_at(const uint16_t* from) { return halves_to_floats(*from).x; }

struct Params {
  KeySearch search;
  StagedTokens tokens;  // of the first page
  float* rest;          // [pages][kv_heads][kTilesPerPage][head_dim][kTokens]
  uint32_t* changed;    // [refinements][pages][kv_heads]
};

// Norms, and the zeros at the end of a part. A warp for each token.
__global__ void __launch_bounds__(256) norms(const __grid_constant__ PageList<uint8_t> parts,
                                             const __grid_constant__ KeySearch search, StagedTokens tokens) {
  const int lane = static_cast<int>(threadIdx.x) % 32, token = static_cast<int>(blockIdx.y * 8 + threadIdx.x / 32);
  uint8_t* const part = parts.pages[blockIdx.x];
  const double square = mean_square(tokens, static_cast<int64_t>(blockIdx.x) * kTokensPerPage + token, lane);
  if (lane == 0) reinterpret_cast<uint16_t*>(part)[token] = float_to_half(static_cast<float>(sqrt(square)));
  const size_t end = search.page.head_offset(search.page.kv_heads) + threadIdx.x;
  if (blockIdx.y == 0 && end < search.page.bytes()) part[end] = 0;
}

// Where a stage's table begins: chunk after chunk of 16 channels, `chunk_elements` apart.
struct StageTable {
  const uint16_t* elements;
  int64_t chunk_elements;

  __device__ StageTable(const KeySearch& search, int head, int stage) {
    const int64_t entry_elements = int64_t{search.entries()} * commvq::kChunk;
    chunk_elements = search.page.stages * entry_elements;
    elements = search.tables + head * (search.head_dim / commvq::kChunk) * chunk_elements + stage * entry_elements;
  }
  __device__ const uint16_t* at(int entry, int channel) const {
    return elements + channel / commvq::kChunk * chunk_elements + entry * commvq::kChunk + channel % commvq::kChunk;
  }
};

// cross[b][a] of one stage of a kv head: a block each.
__global__ void __launch_bounds__(256) cross_of(KeySearch search, float* cross) {
  __shared__ double squares[64];
  const int entries = search.entries(), d = search.head_dim, half = d / 2;
  const StageTable table(search, blockIdx.y, blockIdx.x);
  const auto element = [&](int entry, int channel) { return static_cast<double>(half_at(table.at(entry, channel))); };
  if (static_cast<int>(threadIdx.x) < entries) {
    double sum = 0.0;
    for (int c = 0; c < d; ++c) sum += element(threadIdx.x, c) * element(threadIdx.x, c);
    squares[threadIdx.x] = sum;
  }
  __syncthreads();
  float* const out = cross + (static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * entries * entries;
  for (int i = threadIdx.x; i < entries * entries; i += blockDim.x) {
    const int a = i % entries, b = i / entries;
    double sum = squares[a] + squares[b];
    for (int c = 0; c < d; ++c)
      sum += -element(a, c) * (c < half ? 2.0 * element(b, half + c) : -2.0 * element(b, c - half));
    out[i] = static_cast<float>(sum);
  }
}

// Shared memory of a block.
template <int kEntries>
struct Memory {
  int head_dim;
  float* rest;      // [head_dim][kTokens]
  float* products;  // [2 * kEntries][kTokens]: -2 <x, z_a>, then -2 <x, i z_b>
  float* cross;     // [b][a]
  float* least;     // [kWarps][kTokens]
  int* least_a;     // [kWarps][kTokens]
  int* found_b;     // [kTokens]
  uint16_t* codes;  // [kTokens]
  uint16_t* table;  // [head_dim][kEntries]

  __device__ Memory(int head_dim, void* memory) : head_dim(head_dim) {
    rest = static_cast<float*>(memory);
    products = rest + head_dim * kTokens;
    cross = products + 2 * kEntries * kTokens;
    least = cross + kEntries * kEntries;
    least_a = reinterpret_cast<int*>(least + kWarps * kTokens);
    found_b = least_a + kWarps * kTokens;
    codes = reinterpret_cast<uint16_t*>(found_b + kTokens);
    table = codes + 2 * kTokens;
  }
  static constexpr int bytes(int head_dim) {
    return 4 * (head_dim * kTokens + 2 * kEntries * kTokens + kEntries * kEntries + (2 * kWarps + 2) * kTokens) +
           2 * head_dim * kEntries;
  }
};

struct Code {
  int a, b;
};

// A stage of a kv head for the tokens of a block. Verbs are for all threads; each begins after a barrier.
template <int kEntries>
class StageSearch {
 public:
  __device__ StageSearch(const Memory<kEntries>& memory)
      : memory_(memory), half_(memory.head_dim / 2), warp_(threadIdx.x / 32), lane_(threadIdx.x % 32) {}

  __device__ void load(const KeySearch& search, int head, int stage) const {
    const StageTable table(search, head, stage);
    for (int i = threadIdx.x; i < kEntries * memory_.head_dim / 8; i += kThreads) {
      const int entry = i % kEntries, channel = i / kEntries * 8;
      const uint4 words = __ldg(reinterpret_cast<const uint4*>(table.at(entry, channel)));
      const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        memory_.table[(channel + k) * kEntries + entry] = static_cast<uint16_t>(pairs[k / 2] >> 16 * (k % 2));
      }
    }
    const int64_t number = static_cast<int64_t>(head) * search.page.stages + stage;
    const auto* from = reinterpret_cast<const float4*>(search.cross + number * kEntries * kEntries);
    for (int i = threadIdx.x; i < kEntries * kEntries / 4; i += kThreads) {
      reinterpret_cast<float4*>(memory_.cross)[i] = __ldg(from + i);
    }
  }

  // rest += sign * (z_a + i z_b), of each lane's token.
  __device__ void add(const Code& code, float sign) const {
    for (int j = warp_; j < half_; j += kWarps) {
      float* const re = memory_.rest + j * kTokens + lane_;
      float* const im = re + half_ * kTokens;
      const uint16_t* const first = memory_.table + j * kEntries;
      const uint16_t* const second = first + half_ * kEntries;
      *re += sign * (half_at(first + code.a) - half_at(second + code.b));
      *im += sign * (half_at(second + code.a) + half_at(first + code.b));
    }
  }

  // Sums are made of z itself and doubled in the end, which is exact: the host has doubled its tables.
  __device__ void multiply() const {
    constexpr int kTokenTiles = kTokens / kSide, kEntryTiles = kEntries / kSide;
    for (int tile = threadIdx.x; tile < kTokenTiles * kEntryTiles; tile += kThreads) {
      const int token = tile % kTokenTiles * kSide, entry = tile / kTokenTiles * kSide;
      const float* const x = memory_.rest + token;
      const uint16_t* const z = memory_.table + entry;
      float of_a[kSide][kSide] = {}, of_b[kSide][kSide] = {};  // [entry][token]
      // z_a meets real with real parts, then imaginary with imaginary ones; i z_b is -im + i re.
#pragma unroll 2
      for (int j = 0; j < half_; ++j) step<true>(x, z, j, j, half_ + j, of_a, of_b);
#pragma unroll 2
      for (int j = 0; j < half_; ++j) step<false>(x, z, half_ + j, half_ + j, j, of_a, of_b);
#pragma unroll
      for (int e = 0; e < kSide; ++e) {
        float* const out = memory_.products + (entry + e) * kTokens + token;
        store(out, of_a[e]);
        store(out + kEntries * kTokens, of_b[e]);
      }
    }
  }

  // The nearest centre of each lane's token, the first of equals, and its score.
  __device__ Code nearest(float* score) const {
    constexpr int kMine = kEntries / kWarps;
    float of_a[kMine], least[kMine];
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      of_a[i] = product_a(warp_ * kMine + i);
      least[i] = INFINITY;
    }
#pragma unroll 4
    for (int b = 0; b < kEntries; ++b) {
      const float of_b = product_b(b);
#pragma unroll
      for (int i = 0; i < kMine; i += 4) {
        const float4 four = load_four(memory_.cross + b * kEntries + warp_ * kMine + i);
        least[i] = fminf(least[i], (four.x + of_b) + of_a[i]);
        least[i + 1] = fminf(least[i + 1], (four.y + of_b) + of_a[i + 1]);
        least[i + 2] = fminf(least[i + 2], (four.z + of_b) + of_a[i + 2]);
        least[i + 3] = fminf(least[i + 3], (four.w + of_b) + of_a[i + 3]);
      }
    }
    int best = 0;
    float best_score = least[0];
#pragma unroll
    for (int i = 1; i < kMine; ++i) {
      if (least[i] < best_score) best = i, best_score = least[i];
    }
    memory_.least[warp_ * kTokens + lane_] = best_score;
    memory_.least_a[warp_ * kTokens + lane_] = warp_ * kMine + best;
    if (warp_ == 0) memory_.found_b[lane_] = kEntries - 1;
    __syncthreads();
    Code code = {memory_.least_a[lane_], 0};
    *score = memory_.least[lane_];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) {
      const float other = memory_.least[w * kTokens + lane_];
      if (other < *score) *score = other, code.a = memory_.least_a[w * kTokens + lane_];
    }
    // Which b it was: each warp looks through a quarter.
    for (int b = warp_ * kMine; b < (warp_ + 1) * kMine; ++b) {
      code.b = b;
      if (score_of(code) != *score) continue;
      atomicMin(memory_.found_b + lane_, b);
      break;
    }
    __syncthreads();
    code.b = memory_.found_b[lane_];
    return code;
  }

  // Rounded as the search rounds.
  __device__ float score_of(const Code& code) const {
    return (memory_.cross[code.b * kEntries + code.a] + product_b(code.b)) + product_a(code.a);
  }

 private:
  __device__ float product_a(int a) const { return memory_.products[a * kTokens + lane_]; }
  __device__ float product_b(int b) const { return memory_.products[(kEntries + b) * kTokens + lane_]; }

  template <bool kMinus>
  __device__ __forceinline__ void step(const float* x, const uint16_t* z, int channel, int of_a_channel,
                                       int of_b_channel, float (&of_a)[kSide][kSide],
                                       float (&of_b)[kSide][kSide]) const {
    const float4 four = load_four(x + channel * kTokens);
    const float4 first = load_four(z + of_a_channel * kEntries), second = load_four(z + of_b_channel * kEntries);
    const float tokens[kSide] = {four.x, four.y, four.z, four.w};
    const float as[kSide] = {first.x, first.y, first.z, first.w};
    const float bs[kSide] = {second.x, second.y, second.z, second.w};
#pragma unroll
    for (int e = 0; e < kSide; ++e) {
#pragma unroll
      for (int t = 0; t < kSide; ++t) {
        of_a[e][t] += tokens[t] * as[e];
        if constexpr (kMinus) {
          of_b[e][t] -= tokens[t] * bs[e];
        } else {
          of_b[e][t] += tokens[t] * bs[e];
        }
      }
    }
  }

  __device__ static void store(float* out, const float (&sums)[kSide]) {
    *reinterpret_cast<float4*>(out) = make_float4(-2.0f * sums[0], -2.0f * sums[1], -2.0f * sums[2], -2.0f * sums[3]);
  }

  const Memory<kEntries> memory_;
  const int half_, warp_, lane_;
};

// The codes of a block's tokens in one stage of the page: 2 * index_bits words.
class PackedCodes {
 public:
  __device__ PackedCodes(const KeySearch& search, uint8_t* part, int head, int stage, int tile)
      : index_bits_(search.page.index_bits),
        bytes_(part + search.page.head_offset(head) + stage * search.page.stage_bytes() + 8 * index_bits_ * tile) {}

  __device__ Code read(int token) const {
    const int bit = token * 2 * index_bits_;
    const uint8_t* const from = bytes_ + bit / 8;
    // A code begins at an even bit and ends within two bytes.
    const int both = from[0] | (bit % 8 + 2 * index_bits_ > 8 ? from[1] << 8 : 0);
    const int code = both >> bit % 8 & ((1 << 2 * index_bits_) - 1);
    return {code & ((1 << index_bits_) - 1), code >> index_bits_};
  }

  // One warp. `room`: [kTokens] of shared memory.
  __device__ void write(const Code& code, int lane, uint16_t* room) const {
    const int bits = 2 * index_bits_;
    room[lane] = static_cast<uint16_t>(code.a | code.b << index_bits_);
    __syncwarp();
    if (lane < bits) {
      uint32_t word = 0;
      for (int t = 32 * lane / bits; t < kTokens && t * bits < 32 * (lane + 1); ++t) {
        const int shift = t * bits - 32 * lane;
        word |= shift >= 0 ? uint32_t{room[t]} << shift : uint32_t{room[t]} >> -shift;
      }
      reinterpret_cast<uint32_t*>(bytes_)[lane] = word;
    }
    __syncwarp();
  }

 private:
  const int index_bits_;
  uint8_t* const bytes_;
};

// pass 0: the greedy search; after that, refinement `pass`. The last one leaves no rows behind.
template <int kEntries>
__global__ void __launch_bounds__(kThreads) search_codes(const __grid_constant__ PageList<uint8_t> parts,
                                                         const __grid_constant__ Params params, int pass, bool last) {
  extern __shared__ float4 dynamic[];
  const KeySearch& search = params.search;
  const Memory<kEntries> memory(search.head_dim, dynamic);
  const StageSearch<kEntries> stage(memory);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int page = static_cast<int>(blockIdx.x) / kTilesPerPage, tile = static_cast<int>(blockIdx.x) % kTilesPerPage;
  const int head = static_cast<int>(blockIdx.y), d = search.head_dim, half = d / 2;
  uint8_t* const part = parts.pages[page];
  const int64_t pages_heads = static_cast<int64_t>(gridDim.x) / kTilesPerPage * gridDim.y;
  const int64_t number = static_cast<int64_t>(page) * gridDim.y + head;
  if (pass > 1 && params.changed[(pass - 2) * pages_heads + number] == 0) return;
  float* const waiting = params.rest + (number * kTilesPerPage + tile) * d * kTokens;

  if (pass == 0) {
    // Planar, and divided by the token's norm.
    const int token = page * kTokensPerPage + tile * kTokens + lane;
    const float norm = half_at(reinterpret_cast<const uint16_t*>(part) + tile * kTokens + lane);
    const float divisor = norm == 0.0f ? 1.0f : norm;
    const auto* from = reinterpret_cast<const uint4*>(params.tokens.rows + head * params.tokens.head_elements +
                                                      static_cast<int64_t>(token) * d);
    for (int octet = warp; octet < d / 8; octet += kWarps) {
      const uint4 words = __ldg(from + octet);
      const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int c = 8 * octet + k;
        const int channel = search.pairs == RopePairs::kHalves ? c : c / 2 + c % 2 * half;
        const float2 pair = halves_to_floats(pairs[k / 2]);
        memory.rest[channel * kTokens + lane] = (k % 2 == 0 ? pair.x : pair.y) / divisor;
      }
    }
  } else {
    for (int i = threadIdx.x; i < d * kTokens / 4; i += kThreads) {
      reinterpret_cast<float4*>(memory.rest)[i] = reinterpret_cast<const float4*>(waiting)[i];
    }
  }

  bool changed = false;
  for (int r = 0; r < search.page.stages; ++r) {
    __syncthreads();
    const PackedCodes packed(search, part, head, r, tile);
    stage.load(search, head, r);
    __syncthreads();
    Code code = {};
    if (pass > 0) {
      code = packed.read(lane);
      stage.add(code, 1.0f);
      __syncthreads();
    }
    stage.multiply();
    __syncthreads();
    float score;
    const Code nearest = stage.nearest(&score);
    const bool better = pass == 0 || score < stage.score_of(code);
    if (better) code = nearest;
    stage.add(code, -1.0f);
    if (warp == 0 && __any_sync(0xffffffffu, better)) packed.write(code, lane, memory.codes);
    changed |= better;
  }
  if (pass > 0 && warp == 0 && __any_sync(0xffffffffu, changed) && lane == 0) {
    params.changed[(pass - 1) * pages_heads + number] = 1;
  }
  if (last) return;
  __syncthreads();
  for (int i = threadIdx.x; i < d * kTokens / 4; i += kThreads) {
    reinterpret_cast<float4*>(waiting)[i] = reinterpret_cast<const float4*>(memory.rest)[i];
  }
}

using SearchKernel = void (*)(PageList<uint8_t>, Params, int, bool);

struct Instance {
  SearchKernel kernel;
  int shared_bytes;
};

Instance instance_for(const KeySearch& search) {
  switch (search.page.index_bits) {
    case 4:
      return {search_codes<16>, Memory<16>::bytes(search.head_dim)};
    case 5:
      return {search_codes<32>, Memory<32>::bytes(search.head_dim)};
    default:
      return {search_codes<64>, Memory<64>::bytes(search.head_dim)};
  }
}

// A single stage has nothing to revisit.
int passes_of(const KeySearch& search) { return search.page.stages > 1 ? search.refinements : 0; }

size_t rest_bytes(const KeySearch& search) {
  return passes_of(search) == 0 ? 0 : sizeof(float) * kTokensPerPage * search.page.kv_heads * search.head_dim;
}

size_t page_scratch(const KeySearch& search) {
  return rest_bytes(search) + sizeof(uint32_t) * passes_of(search) * search.page.kv_heads;
}

bool supported(const KeySearch& search) {
  const commvq::KeyPage& page = search.page;
  return search.head_dim % commvq::kChunk == 0 && search.head_dim >= 32 && search.head_dim <= kMaxHeadDim &&
         page.index_bits >= 4 && page.index_bits <= 6 && page.stages >= 1 && page.stages <= commvq::kMaxStages &&
         page.kv_heads >= 1 && page.kv_heads <= 65535 && search.refinements >= 0;
}

}  // namespace

size_t key_cross_bytes(const KeySearch& search) {
  return sizeof(float) * search.page.kv_heads * search.page.stages * search.entries() * search.entries();
}

cudaError_t key_cross(const KeySearch& search, float* cross, cudaStream_t stream) {
  if (!supported(search)) return cudaErrorInvalidValue;
  cross_of<<<dim3(search.page.stages, search.page.kv_heads), 256, 0, stream>>>(search, cross);
  return cudaGetLastError();
}

size_t key_scratch_bytes(const KeySearch& search, int64_t page_count) {
  return page_scratch(search) * static_cast<size_t>(pages_at_once(page_scratch(search), page_count));
}

cudaError_t seal_commvq_keys(const KeySearch& search, const CommVqSealRequest& request, cudaStream_t stream) {
  if (!supported(search)) return cudaErrorInvalidValue;
  const Instance instance = instance_for(search);
  int most_shared = 0;
  cudaError_t error = most_shared_memory(&most_shared);
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(instance.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared);
  }
  if (error != cudaSuccess) return error;
  const int passes = passes_of(search), heads = search.page.kv_heads;
  const auto launch = [&](const PageList<uint8_t>& list, int count, int64_t first) {
    Params params = {};
    params.search = search;
    params.tokens = {request.staging.sides[0] + first * kTokensPerPage * search.head_dim,
                     request.staging.rows * search.head_dim, heads, search.head_dim};
    params.rest = static_cast<float*>(request.scratch);
    params.changed = reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(request.scratch) + count * rest_bytes(search));
    if (passes > 0) {
      const size_t bytes = sizeof(uint32_t) * static_cast<size_t>(passes) * count * heads;
      const cudaError_t cleared = cudaMemsetAsync(params.changed, 0, bytes, stream);
      if (cleared != cudaSuccess) return cleared;
    }
    norms<<<dim3(count, kTokensPerPage / 8), 256, 0, stream>>>(list, search, params.tokens);
    for (int pass = 0; pass <= passes; ++pass) {
      instance.kernel<<<dim3(count * kTilesPerPage, heads), kThreads, instance.shared_bytes, stream>>>(
          list, params, pass, pass == passes);
    }
    return cudaGetLastError();
  };
  return for_page_lists(request.parts, request.page_count, launch,
                        pages_at_once(page_scratch(search), request.page_count));
}

}  // namespace kvasir::cuda
