// Seals pages in the fragment order of layout/fragments.h. A block takes up to 128 channels of one side of one kv head
// of one page: rows to shared memory, least and greatest elements on the way, parameters, then codes.
//
// Lanes get their elements from shared memory by ldmatrix, transposed for values: a register then holds the pair of
// neighbouring x at one y that stands in one 32-bit word of a group.
#include <cuda_fp16.h>

#include "kernels/cuda/layout/input_octets.cuh"
#include "kernels/cuda/layout/page_list.h"
#include "kernels/cuda/pages/encode_parts.h"
#include "kernels/cuda/pages/fragment_pack.cuh"
#include "kernels/cuda/primitives/mma.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kTokens = kPageTokens;
constexpr int kRowStep = 16;  // rows that a block loads at a time

// One side, as the kernel needs it.
struct Side {
  int64_t offset, stride;
  PartLayout part;
  int parts;
  Grid grid;
  progressive::Shift shift;
  bool present, keys, exact, per_token;
  bool cut;  // SlabQuantisers::cut
};

struct Params {
  Side sides[2];
  int slabs;  // of up to 128 channels
};

// Rows of a slab and what becomes of them. Rows are padded so that ldmatrix meets no bank twice.
template <int kSpan>
struct Tile {
  alignas(16) uint16_t rows[kTokens][kSpan + kOctet];
  union alignas(16) {
    uint16_t by_channel[2][kRowStep][kSpan];         // least and greatest of the rows that one thread saw
    uint32_t by_token[kTokens][kSpan / kOctet + 1];  // least and greatest of eight channels, as halves of a word
  };
  ScalePair scales[kTokens / 2];
  float lowest[kTokens], range[kTokens];
  double inverse16[kTokens];
};

__device__ __forceinline__ uint32_t least(uint32_t a, uint32_t b) {
  return as_word(__hmin2(as_halves(a), as_halves(b)));
}
__device__ __forceinline__ uint32_t greatest(uint32_t a, uint32_t b) {
  return as_word(__hmax2(as_halves(a), as_halves(b)));
}

// Loads the slab and leaves extremes of each thread's share. A reader loads octets of it (fetch), then makes float16 of
// them (convert). Returns whether it made what it should of this thread's.
template <int kSpan, class Reader>
__device__ __forceinline__ bool load_rows(const Reader& reader, bool per_token, bool wanted, Tile<kSpan>& tile) {
  constexpr int kOctets = kSpan / kOctet, kLoads = kTokens / kRowStep;
  constexpr int kAtOnce = kLoads / Reader::kVectors;  // as many vectors are under way as registers hold
  const int octet = static_cast<int>(threadIdx.x) % kOctets;
  const int first = static_cast<int>(threadIdx.x) / kOctets;
  uint4 lowest, highest;
  bool fine = true;
#pragma unroll
  for (int done = 0; done < kLoads; done += kAtOnce) {
    decltype(reader.fetch(0, 0)) loaded[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) loaded[i] = reader.fetch(first + (done + i) * kRowStep, octet * kOctet);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = first + (done + i) * kRowStep;
      uint4 v;
      fine &= reader.convert(loaded[i], octet * kOctet, &v);
      *reinterpret_cast<uint4*>(&tile.rows[row][octet * kOctet]) = v;
      if (!wanted) continue;
      if (per_token) {
        const uint32_t low = least(least(v.x, v.y), least(v.z, v.w));
        const uint32_t high = greatest(greatest(v.x, v.y), greatest(v.z, v.w));
        const uint32_t odd = __byte_perm(low, high, 0x7632), even = __byte_perm(low, high, 0x5410);
        // {least, greatest} of even channels and of odd ones: keep the lower of one half, the higher of the other.
        tile.by_token[row][octet] = __byte_perm(least(odd, even), greatest(odd, even), 0x7610);
      } else if (done + i == 0) {
        lowest = highest = v;
      } else {
        lowest = make_uint4(least(lowest.x, v.x), least(lowest.y, v.y), least(lowest.z, v.z), least(lowest.w, v.w));
        highest = make_uint4(greatest(highest.x, v.x), greatest(highest.y, v.y), greatest(highest.z, v.z),
                             greatest(highest.w, v.w));
      }
    }
  }
  if (wanted && !per_token) {
    *reinterpret_cast<uint4*>(&tile.by_channel[0][first][octet * kOctet]) = lowest;
    *reinterpret_cast<uint4*>(&tile.by_channel[1][first][octet * kOctet]) = highest;
  }
  return fine;
}

// Where rows of pages come from. `place` is the first of a slab: of the page's tokens, of the slab's channels. Loading
// ends with a barrier.
struct StagedPageRows {
  const uint16_t* sides[2];  // kv head 0, first page
  int64_t head_elements;     // from one kv head's rows to the next one's
  int head_dim;

  template <int kSpan>
  __device__ __forceinline__ void load(const RowPlace& place, bool per_token, bool wanted, Tile<kSpan>& tile) const {
    const int64_t first = place.head * head_elements + place.token * head_dim + place.channel;
    load_rows(Reader{sides[place.side] + first, head_dim}, per_token, wanted, tile);
    __syncthreads();
  }

 private:
  struct Reader {
    static constexpr int kVectors = 1;
    const uint16_t* rows;
    int head_dim;
    __device__ __forceinline__ uint4 fetch(int row, int channel) const {
      return __ldcs(reinterpret_cast<const uint4*>(rows + int64_t{row} * head_dim + channel));
    }
    __device__ __forceinline__ bool convert(const uint4& raw, int, uint4* out) const {
      *out = raw;
      return true;
    }
  };
};

struct InputPageRows {
  InputSource source;

  // Slabs that are scaled, or have elements that are not acceptable, take a reader that looks at each of them.
  template <int kSpan>
  __device__ __forceinline__ void load(const RowPlace& place, bool per_token, bool wanted, Tile<kSpan>& tile) const {
    const bool wide = source.wide(place.side);
    if (!source.scaled(place.side)) {
      const bool fine = wide ? load_rows(Reader<2, false>{source, place}, per_token, wanted, tile)
                             : load_rows(Reader<1, false>{source, place}, per_token, wanted, tile);
      if (__syncthreads_and(fine)) return;
    }
    wide ? load_rows(Reader<2, true>{source, place}, per_token, wanted, tile)
         : load_rows(Reader<1, true>{source, place}, per_token, wanted, tile);
    __syncthreads();
  }

 private:
  template <int kVectors_, bool kChecks>
  struct Reader {
    static constexpr int kVectors = kVectors_;
    const InputSource& source;
    RowPlace place;
    __device__ __forceinline__ InputSource::Raw<kVectors> fetch(int row, int channel) const {
      return source.fetch<kVectors>({place.side, place.token + row, place.head, place.channel + channel});
    }
    __device__ __forceinline__ bool convert(const InputSource::Raw<kVectors>& raw, int channel, uint4* out) const {
      Octet octet;
      bool fine = true;
      if constexpr (kChecks) {
        octet = source.checked({place.side, 0, place.head, place.channel + channel}, raw);
      } else {
        fine = InputSource::round(raw, source.rows.types[place.side], &octet);
      }
      *out = make_uint4(octet.words[0], octet.words[1], octet.words[2], octet.words[3]);
      return fine;
    }
  };
};

// Parameters of each token or channel, to the page and to shared memory. `out` is the part; a slab that is one of
// several of a part begins at parameter `first`.
template <int kSpan>
__device__ __forceinline__ void make_parameters(const Side& side, int first, uint8_t* out, Tile<kSpan>& tile) {
  const int thread = static_cast<int>(threadIdx.x);
  if (!side.per_token) {
    const int channel = thread % kSpan;
    const bool greater = thread >= kSpan;
    uint16_t(&extremes)[kRowStep][kSpan] = tile.by_channel[greater];
    float extreme = __half2float(__ushort_as_half(extremes[0][channel]));
#pragma unroll
    for (int i = 1; i < kRowStep; ++i) {
      const float x = __half2float(__ushort_as_half(extremes[i][channel]));
      extreme = greater ? fmaxf(extreme, x) : fminf(extreme, x);
    }
    (greater ? tile.range : tile.lowest)[channel] = extreme;
    __syncthreads();
  }
  if (thread >= (side.per_token ? kTokens : kSpan)) return;
  float lowest, highest;
  if (side.per_token) {
    uint32_t low = tile.by_token[thread][0], high = low;
#pragma unroll
    for (int i = 1; i < kSpan / kOctet; ++i) {
      low = least(low, tile.by_token[thread][i]);
      high = greatest(high, tile.by_token[thread][i]);
    }
    lowest = __low2float(as_halves(low));
    highest = __high2float(as_halves(high));
  } else {
    lowest = tile.lowest[thread];
    highest = tile.range[thread];
  }
  uniform::Parameters stored = uniform::parameters_of(lowest, highest);
  const Quantiser quantiser = quantiser_of(stored, uniform::codes_of(side.part.element_bits(), side.grid));
  tile.scales[thread / 2].lo[thread % 2] = quantiser.lo;
  tile.scales[thread / 2].inverse[thread % 2] = quantiser.inverse;
  tile.range[thread] = quantiser.range;
  if (side.exact && side.part.bits == kWideBits) tile.inverse16[thread] = inverse16_of(quantiser.range, side.grid);
  if (side.cut && side.shift == progressive::Shift::kModified) {
    progressive::modify_parameters_to(side.part.element_bits(), &stored.lo, &stored.range);
  }
  const uint32_t word = stored.range | static_cast<uint32_t>(stored.lo) << 16;
  *reinterpret_cast<uint32_t*>(out + side.part.parameter_byte(first + thread)) = word;
}

template <int kSpan, class Rows>
__global__ void __launch_bounds__(2 * kSpan, 512 / kSpan)
    seal(const __grid_constant__ PageList<uint8_t> pages, const __grid_constant__ Params params,
         const __grid_constant__ Rows rows) {
  constexpr int kWarps = 2 * kSpan / 32;
  __shared__ Tile<kSpan> tile;
  const Side& side = params.sides[blockIdx.z];
  if (!side.present) return;
  const int head = static_cast<int>(blockIdx.y) / params.slabs, slab = static_cast<int>(blockIdx.y) % params.slabs;
  const bool coded = side.part.bits != kFloat16Bits;
  rows.load({static_cast<int>(blockIdx.z), int64_t{kTokens} * blockIdx.x, head, slab * kSpan}, side.per_token, coded,
            tile);

  // A slab is a part of its own, or a stretch of x of the only part.
  const bool own = side.parts > 1;
  uint8_t* part = pages.pages[blockIdx.x] + side.offset + head * side.stride;
  if (own) part += static_cast<int64_t>(slab) * side.part.bytes();
  const Slab piece = {side.part, side.keys, side.per_token, own ? 0 : slab};
  uint8_t* groups = part + side.part.parameter_bytes();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int matrix = lane / 8, line = lane % 8;  // whose row the lane addresses for ldmatrix
  const auto store = [&](int group, const uint32_t(&w)[4]) {
    *reinterpret_cast<uint4*>(groups + static_cast<int64_t>(group) * kGroupBytes + 16 * lane) =
        make_uint4(w[0], w[1], w[2], w[3]);
  };
  const auto fetch_matrix = [&](int x, int y, uint32_t(&words)[4]) {
    const auto address =
        static_cast<uint32_t>(__cvta_generic_to_shared(side.keys ? &tile.rows[y + line][x] : &tile.rows[x + line][y]));
    __syncwarp();  // lanes may have parted over a code that had to be decided
    const uint4 four = side.keys ? load_matrices(address) : load_transposed_matrices(address);
    words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
  };
  if (!coded) {
    const auto fetch16 = [&](int x, int y, uint32_t(&words)[4]) {
      fetch_matrix(x + 8 * (matrix / 2), y + 8 * (matrix % 2), words);
    };
    return pack_halves<kSpan>(piece, warp, kWarps, fetch16, store);
  }
  make_parameters(side, piece.stretch * kSpan, part, tile);
  __syncthreads();
  const auto fetch = [&](int x, int y, uint32_t(&words)[4]) { fetch_matrix(x + 8 * matrix, y, words); };
  const SlabQuantisers quantisers = {tile.scales, tile.range, tile.inverse16, side.grid == Grid::kCells, side.cut};
  pack_codes<kSpan>(piece, side.exact, quantisers, warp, kWarps, lane, fetch, store);
}

Side side_of(const EncodeRequest& request, int index) {
  const SideFormat& format = request.sides[index];
  Side side = {};
  side.present = format.format.elements != Elements::kOwn;
  if (!side.present) return side;
  side.offset = format.offset;
  side.stride = format.stride;
  side.part = format.part();
  side.parts = format.parts();
  side.grid = format.format.grid;
  side.keys = index == 0;
  side.exact = format.format.elements == Elements::kNarrowed;
  side.shift = progressive::shift_of(format.format);
  side.cut = side.exact && side.grid == Grid::kEnds && side.shift != progressive::Shift::kEquivalent;
  side.per_token = format.format.elements != Elements::kHalves && format.format.axis == Axis::kToken;
  return side;
}

template <class Rows>
cudaError_t launch(const EncodeRequest& request, const PageList<uint8_t>& list, int count, const Params& params,
                   const Rows& rows, cudaStream_t stream) {
  const dim3 grid(count, request.shape.kv_heads * params.slabs, 2);
  switch (request.shape.head_dim) {
    case 64:
      seal<64><<<grid, 128, 0, stream>>>(list, params, rows);
      break;
    case 96:
      seal<96><<<grid, 192, 0, stream>>>(list, params, rows);
      break;
    default:
      seal<128><<<grid, 256, 0, stream>>>(list, params, rows);
      break;
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t encode_fragments(const EncodeRequest& request, cudaStream_t stream) {
  const int d = request.shape.head_dim;
  if (!head_dim_supported(d)) return cudaErrorInvalidValue;
  const Params params = {{side_of(request, 0), side_of(request, 1)}, d > kValueSpan ? d / kValueSpan : 1};
  return for_page_lists(request.pages, request.page_count, [&](const PageList<uint8_t>& list, int count, int64_t page) {
    const int64_t first = request.first_row + page * kTokens;
    if (request.input != nullptr) {
      const InputPageRows rows = {InputSource::of(request.shape, *request.input, first)};
      return launch(request, list, count, params, rows, stream);
    }
    const StagedPageRows rows = {
        {request.staging.sides[0] + first * d, request.staging.sides[1] + first * d}, request.staging.rows * d, d};
    return launch(request, list, count, params, rows, stream);
  });
}

}  // namespace kvasir::cuda
