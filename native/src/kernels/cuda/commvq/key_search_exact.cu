// Codes of CommVQ's keys: KeyCodebook's greedy search and its refinements. Compiled without contraction
// (CMakeLists.txt): where choices are close the arithmetic is the host's, operation by operation.
//
// A block takes 32 tokens of one kv head through all stages. What the stages so far have left over stays in shared
// memory, [channel][token]; a stage's table joins it, [channel][entry]. Then
//
//   estimate    products with all entries by tensor cores: rows as sums of two float16 numbers, tables as they are
//   nearest     a warp has a quarter of the a and a lane for each token, and looks for the least over all b
//   multiply    the host's products instead, for tokens that have another centre within what the estimate may be off
//
// so that codes are the host's although next to none of its products is made. Refinements are launches of their own,
// because a page's head goes on as long as one of its 128 tokens changes; rows wait in the scratch, codes in the page.
#include <cmath>

#include "base/half.h"
#include "kernels/cuda/commvq/seal.h"
#include "kernels/cuda/layout/page_list.h"
#include "kernels/cuda/pages/pages_at_once.h"
#include "kernels/cuda/primitives/shared_memory.h"
#include "kernels/cuda/rows/staged_tokens.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kTokens = 32;  // of a block: a lane each
constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kTilesPerPage = kPageTokens / kTokens;
// Strides in shared memory, so that the lanes of a fragment meet different banks.
constexpr int kRestStride = kTokens + 4;
constexpr int kProductStride = kTokens + 8;
constexpr int kTablePadding = 8;
// Rows of greater length are not estimated: float16 ends at 65504.
constexpr float kLongest = 60000.0f;

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
  const double square = mean_square(tokens, static_cast<int64_t>(blockIdx.x) * kPageTokens + token, lane);
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
  static constexpr int kTableStride = kEntries + kTablePadding;

  int head_dim;
  float* rest;      // [head_dim][kRestStride]
  float* products;  // [2 * kEntries][kProductStride]: -2 <x, z_a>, then -2 <x, i z_b>
  float* cross;     // [b][a]
  float* least;     // [kWarps][kTokens]
  int* least_a;     // [kWarps][kTokens]
  int* found_b;     // [kTokens]
  int* close;       // [kTokens]
  float* lengths;   // [kTokens]
  uint16_t* codes;  // [kTokens]
  uint16_t* table;  // [head_dim][kTableStride]

  __device__ Memory(int head_dim, void* memory) : head_dim(head_dim) {
    rest = static_cast<float*>(memory);
    products = rest + head_dim * kRestStride;
    cross = products + 2 * kEntries * kProductStride;
    least = cross + kEntries * kEntries;
    least_a = reinterpret_cast<int*>(least + kWarps * kTokens);
    found_b = least_a + kWarps * kTokens;
    close = found_b + kTokens;
    lengths = reinterpret_cast<float*>(close + kTokens);
    codes = reinterpret_cast<uint16_t*>(lengths + kTokens);
    table = codes + 2 * kTokens;
  }
  static constexpr int bytes(int head_dim) {
    return 4 * (head_dim * kRestStride + 2 * kEntries * kProductStride + kEntries * kEntries +
                (2 * kWarps + 4) * kTokens) +
           2 * head_dim * kTableStride;
  }
};

struct Code {
  int a, b;
};

struct Found {
  Code code;
  float score;
  bool alone;  // no other centre's score is within the margin of it
};

// Two neighbouring channels as sums of float16 numbers.
struct Split {
  uint32_t high, low;

  __device__ __forceinline__ Split(float even, float odd) {
    high = floats_to_halves(even, odd);
    const float2 taken = halves_to_floats(high);
    low = floats_to_halves(even - taken.x, odd - taken.y);
  }
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
      for (int k = 0; k < 8; ++k) *entry_at(channel + k, entry) = static_cast<uint16_t>(pairs[k / 2] >> 16 * (k % 2));
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
      float* const re = rest_at(j, lane_);
      float* const im = rest_at(half_ + j, lane_);
      *re += sign * (half_at(entry_at(j, code.a)) - half_at(entry_at(half_ + j, code.b)));
      *im += sign * (half_at(entry_at(half_ + j, code.a)) + half_at(entry_at(j, code.b)));
    }
  }

  // A warp has eight tokens. <x, i z> is <y, z> with y the imaginary parts of x, then its negated real parts.
  __device__ void estimate() const {
    constexpr int kTiles = kEntries / 16;
    const int token = warp_ * 8 + lane_ / 4;
    float of_a[kTiles][4] = {}, of_b[kTiles][4] = {}, square = 0.0f;
    const auto table =
        static_cast<uint32_t>(__cvta_generic_to_shared(entry_at(lane_ / 16 * 8 + lane_ % 8, lane_ / 8 % 2 * 8)));
    const auto turned = [&](int channel) {
      return channel < half_ ? *rest_at(channel + half_, token) : -*rest_at(channel - half_, token);
    };
    for (int first = 0; first < memory_.head_dim; first += 16) {
      const int channel = first + lane_ % 4 * 2;
      const float x[4] = {*rest_at(channel, token), *rest_at(channel + 1, token), *rest_at(channel + 8, token),
                          *rest_at(channel + 9, token)};
#pragma unroll
      for (const float each : x) square = fmaf(each, each, square);
      const Split x0(x[0], x[1]), x1(x[2], x[3]);
      const Split y0(turned(channel), turned(channel + 1)), y1(turned(channel + 8), turned(channel + 9));
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint4 z = load_transposed_matrices(table + 2 * (first * Memory<kEntries>::kTableStride + 16 * tile));
        mma_halves(of_a[tile], z, x0.high, x1.high);
        mma_halves(of_b[tile], z, y0.high, y1.high);
        mma_halves(of_a[tile], z, x0.low, x1.low);
        mma_halves(of_b[tile], z, y0.low, y1.low);
      }
    }
    square += __shfl_xor_sync(0xffffffffu, square, 1);
    square += __shfl_xor_sync(0xffffffffu, square, 2);
    if (lane_ % 4 == 0) memory_.lengths[token] = sqrtf(square);
    const auto store = [&](int row, float even, float odd) {
      float* const to = memory_.products + row * kProductStride + warp_ * 8 + lane_ % 4 * 2;
      *reinterpret_cast<float2*>(to) = make_float2(-2.0f * even, -2.0f * odd);
    };
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int entry = 16 * tile + lane_ / 4;
      store(entry, of_a[tile][0], of_a[tile][1]);
      store(entry + 8, of_a[tile][2], of_a[tile][3]);
      store(kEntries + entry, of_b[tile][0], of_b[tile][1]);
      store(kEntries + entry + 8, of_b[tile][2], of_b[tile][3]);
    }
  }

  // How far apart two estimated scores of a lane's token may be although the host's are the other way round. Either is
  // four products off, counting twofold ones twice: by what the host's sums of d terms and those of tensor cores round,
  // less than d 2^-22 |x| |z| in all, and by what two float16 numbers lose of tiny x.
  __device__ float margin() const {
    // |z|^2 is half of |z + i z|^2.
    float most = 0.0f;
    for (int e = lane_ % kEntries; e < kEntries; e += 32) most = fmaxf(most, memory_.cross[e * kEntries + e]);
    const float z = sqrtf(0.5f * __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(most))));
    const float x = memory_.lengths[lane_];
    return x < kLongest ? z * (static_cast<float>(memory_.head_dim) * 0x1p-19f * x + 0x1p-17f * (1.0f + z)) : INFINITY;
  }

  // The host's products of one token. Sums are made of z itself and doubled in the end, which is exact: the host has
  // doubled its tables.
  __device__ void multiply(int token) const {
    for (int i = threadIdx.x; i < 2 * kEntries; i += kThreads) {
      const int entry = i % kEntries;
      float sum = 0.0f;
      if (i < kEntries) {
        for (int c = 0; c < 2 * half_; ++c) sum += *rest_at(c, token) * half_at(entry_at(c, entry));
      } else {
        for (int j = 0; j < half_; ++j) sum -= *rest_at(j, token) * half_at(entry_at(half_ + j, entry));
        for (int j = 0; j < half_; ++j) sum += *rest_at(half_ + j, token) * half_at(entry_at(j, entry));
      }
      memory_.products[i * kProductStride + token] = -2.0f * sum;
    }
  }

  // The nearest centre of each lane's token by the products that are there, the first of equals.
  __device__ Found nearest(float margin) const {
    constexpr int kMine = kEntries / kWarps;
    float least[kMine];
#pragma unroll
    for (int i = 0; i < kMine; ++i) least[i] = INFINITY;
#pragma unroll 4
    for (int b = 0; b < kEntries; ++b) {
      const float of_b = product_b(b);
#pragma unroll
      for (int i = 0; i < kMine; i += 4) {
        const auto four = *reinterpret_cast<const float4*>(memory_.cross + b * kEntries + warp_ * kMine + i);
        least[i] = fminf(least[i], four.x + of_b);
        least[i + 1] = fminf(least[i + 1], four.y + of_b);
        least[i + 2] = fminf(least[i + 2], four.z + of_b);
        least[i + 3] = fminf(least[i + 3], four.w + of_b);
      }
    }
    // Rounding keeps the order, so the least sum with a's product is the sum of the least.
    int best = 0;
    float best_score = INFINITY;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      least[i] += product_a(warp_ * kMine + i);
      if (least[i] < best_score) best = i, best_score = least[i];
    }
    memory_.least[warp_ * kTokens + lane_] = best_score;
    memory_.least_a[warp_ * kTokens + lane_] = warp_ * kMine + best;
    if (warp_ == 0) {
      memory_.found_b[lane_] = kEntries - 1;
      memory_.close[lane_] = 0;
    }
    __syncthreads();
    Found found = {{memory_.least_a[lane_], 0}, memory_.least[lane_], false};
#pragma unroll
    for (int w = 1; w < kWarps; ++w) {
      const float other = memory_.least[w * kTokens + lane_];
      if (other < found.score) found.score = other, found.code.a = memory_.least_a[w * kTokens + lane_];
    }
    // Which b it was, and what else is close, of other a and of this one: each warp looks through a quarter.
    const float limit = found.score + margin;
    int close = 0;
#pragma unroll
    for (int i = 0; i < kMine; ++i) close += least[i] <= limit;
    for (int b = (warp_ + 1) * kMine - 1; b >= warp_ * kMine; --b) {
      const float score = score_of({found.code.a, b});
      close += score <= limit;
      if (score == found.score) found.code.b = b;
    }
    atomicAdd(memory_.close + lane_, close);
    if (score_of(found.code) == found.score) atomicMin(memory_.found_b + lane_, found.code.b);
    __syncthreads();
    found.code.b = memory_.found_b[lane_];
    found.alone = memory_.close[lane_] == 2;  // its a among all a, and its b among all b
    return found;
  }

  // Rounded as the search rounds.
  __device__ float score_of(const Code& code) const {
    return (memory_.cross[code.b * kEntries + code.a] + product_b(code.b)) + product_a(code.a);
  }

 private:
  __device__ float* rest_at(int channel, int token) const { return memory_.rest + channel * kRestStride + token; }
  __device__ uint16_t* entry_at(int channel, int entry) const {
    return memory_.table + channel * Memory<kEntries>::kTableStride + entry;
  }
  __device__ float product_a(int a) const { return memory_.products[a * kProductStride + lane_]; }
  __device__ float product_b(int b) const { return memory_.products[(kEntries + b) * kProductStride + lane_]; }

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

// The rows of a block's tokens, planar and divided by the tokens' norms. first: of them among the tokens of the launch.
template <int kEntries>
__device__ __forceinline__ void load_rest(const Params& params, const Memory<kEntries>& memory, const uint16_t* norms,
                                          int head, int first, int warp, int lane) {
  const int d = memory.head_dim;
  const float norm = half_at(norms + lane);
  const float divisor = norm == 0.0f ? 1.0f : norm;
  const auto* from = reinterpret_cast<const uint4*>(params.tokens.rows + head * params.tokens.head_elements +
                                                    static_cast<int64_t>(first + lane) * d);
  for (int octet = warp; octet < d / 8; octet += kWarps) {
    const uint4 words = __ldg(from + octet);
    const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int c = 8 * octet + k;
      const int channel = params.search.pairs == RopePairs::kHalves ? c : c / 2 + c % 2 * (d / 2);
      const float2 pair = halves_to_floats(pairs[k / 2]);
      memory.rest[channel * kRestStride + lane] = (k % 2 == 0 ? pair.x : pair.y) / divisor;
    }
  }
}

// The nearest centre of each lane's token by the host's arithmetic: estimated, and where others are close, `code` in
// force among them, computed anew. Begins after a barrier.
template <int kEntries>
__device__ __forceinline__ Found find(const StageSearch<kEntries>& stage, bool in_force, const Code& code) {
  stage.estimate();
  __syncthreads();
  const float margin = stage.margin();
  Found found = stage.nearest(margin);
  bool unsure = !found.alone;
  if (in_force && (found.code.a != code.a || found.code.b != code.b)) {
    unsure |= stage.score_of(code) <= found.score + margin;
  }
  // All warps see the same.
  uint32_t close = __ballot_sync(0xffffffffu, unsure);
  if (close != 0) {
    __syncthreads();
    for (; close != 0; close &= close - 1) stage.multiply(__ffs(static_cast<int>(close)) - 1);
    __syncthreads();
    found = stage.nearest(0.0f);
  }
  return found;
}

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
  const int head = static_cast<int>(blockIdx.y), d = search.head_dim;
  uint8_t* const part = parts.pages[page];
  const int64_t pages_heads = static_cast<int64_t>(gridDim.x) / kTilesPerPage * gridDim.y;
  const int64_t number = static_cast<int64_t>(page) * gridDim.y + head;
  if (pass > 1 && params.changed[(pass - 2) * pages_heads + number] == 0) return;
  float* const waiting = params.rest + (number * kTilesPerPage + tile) * d * kTokens;

  if (pass == 0) {
    load_rest(params, memory, reinterpret_cast<const uint16_t*>(part) + tile * kTokens, head,
              page * kPageTokens + tile * kTokens, warp, lane);
  } else {
    for (int i = threadIdx.x; i < d * kTokens; i += kThreads) {
      memory.rest[i / kTokens * kRestStride + i % kTokens] = waiting[i];
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
    const Found found = find(stage, pass > 0, code);
    const bool better = pass == 0 || found.score < stage.score_of(code);
    if (better) code = found.code;
    stage.add(code, -1.0f);
    if (warp == 0 && __any_sync(0xffffffffu, better)) packed.write(code, lane, memory.codes);
    changed |= better;
  }
  if (pass > 0 && warp == 0 && __any_sync(0xffffffffu, changed) && lane == 0) {
    params.changed[(pass - 1) * pages_heads + number] = 1;
  }
  if (last) return;
  __syncthreads();
  for (int i = threadIdx.x; i < d * kTokens; i += kThreads) {
    waiting[i] = memory.rest[i / kTokens * kRestStride + i % kTokens];
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
  return passes_of(search) == 0 ? 0 : sizeof(float) * kPageTokens * search.page.kv_heads * search.head_dim;
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

bool seals_commvq_keys(const KeySearch& search) { return shared_memory_has(instance_for(search).shared_bytes); }

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
  if (!supported(search) || !request.has_rows()) return cudaErrorInvalidValue;
  const Instance instance = instance_for(search);
  const cudaError_t error = allow_shared_memory(instance.kernel, instance.shared_bytes);
  if (error != cudaSuccess) return error;
  const int passes = passes_of(search), heads = search.page.kv_heads;
  const auto launch = [&](const PageList<uint8_t>& list, int count, int64_t first) {
    Params params = {};
    params.search = search;
    params.tokens = {request.staging.sides[0] + first * kPageTokens * search.head_dim,
                     request.staging.rows * search.head_dim, heads, search.head_dim};
    params.rest = static_cast<float*>(request.scratch);
    params.changed = reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(request.scratch) + count * rest_bytes(search));
    if (passes > 0) {
      const size_t bytes = sizeof(uint32_t) * static_cast<size_t>(passes) * count * heads;
      const cudaError_t cleared = cudaMemsetAsync(params.changed, 0, bytes, stream);
      if (cleared != cudaSuccess) return cleared;
    }
    norms<<<dim3(count, kPageTokens / 8), 256, 0, stream>>>(list, search, params.tokens);
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
