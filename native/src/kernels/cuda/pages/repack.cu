// A block takes one side of one kv head of one page. Codes of several elements share a byte, in either layout: packing
// collects words in shared memory by atomic ORs, and unpacking makes each word of the canonical side in one thread.
#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/layout/labels.h"
#include "kernels/cuda/layout/part_pairs.h"
#include "kernels/cuda/pages/repack.h"
#include "kernels/cuda/primitives/shared_memory.h"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 256;

__device__ uint32_t load16(const uint8_t* at) { return *reinterpret_cast<const uint16_t*>(at); }
__device__ void store16(uint8_t* at, uint32_t value) {
  *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(value);
}

// One launch, whose list travels with its parameters.
struct RepackRequest : RepackShape {
  static constexpr int kMost = 128;
  RepackPage pages[kMost];
};

// What a block works on.
struct Work {
  bool keys;
  uint8_t* canonical;
  uint8_t* block;  // the head's, labels first

  __device__ explicit Work(const RepackRequest& request) : keys(blockIdx.y == 0) {
    const int64_t head = blockIdx.x;
    const RepackPage& each = request.pages[blockIdx.z];
    canonical = keys ? each.canonical + head * request.key_bytes
                     : each.canonical + request.kv_heads * request.key_bytes + head * request.value_bytes;
    block = each.page + head * request.layout.bytes();
  }
  __device__ int parts(const HeadLayout& layout) const { return keys ? layout.key_parts() : layout.value_parts(); }
  __device__ PartPair pair(const HeadLayout& layout, int part) const {
    return keys ? key_pair(layout, part) : value_pair(layout, part);
  }
  __device__ uint8_t* part(const HeadLayout& layout, int part) const {
    return block + layout.label_bytes() + (keys ? layout.key_offset(part) : layout.value_offset(part));
  }
  __device__ uint8_t* labels(const RepackRequest& request) const {
    return canonical + (keys ? request.key_labels : request.value_labels);
  }
  __device__ int label_byte(int token) const { return keys ? key_label_byte(token) : value_label_byte(token); }
};

__device__ void pack_halves(const PartPair& pair, const uint8_t* canonical, uint8_t* part) {
  const PartLayout& device = pair.device;
  for (int i = threadIdx.x; i < device.x_size * device.y_size; i += kThreads) {
    const int x = i % device.x_size, y = i / device.x_size;
    store16(part + device.float16_byte(x, y), load16(canonical + pair.canonical16(x, y)));
  }
}

// Codes of one canonical word: so many of consecutive x, from a multiple of that on, at one y. All are in one fragment,
// and fragment_byte(x + i, y) is fragment_byte(x, y) + fragment_byte(i, 0). visit(lowest bit in the word, bytes from
// the first code's on).
template <int kBits>
constexpr int kWordCodes = 32 / kBits;
template <int kBits, class Visit>
__device__ __forceinline__ void for_codes(const Visit& visit) {
#pragma unroll
  for (int place = 0; place < 8 / kBits; ++place) {
#pragma unroll
    for (int i = 0; i < 4; ++i) visit(8 * i + kBits * place, fragment_byte(4 * place + i, 0));
  }
}

// visit(the bits of a plane as a constant).
template <class Visit>
__device__ __forceinline__ void with_bits(int bits, const Visit& visit) {
  switch (bits) {
    case 1:
      return visit(std::integral_constant<int, 1>());
    case 2:
      return visit(std::integral_constant<int, 2>());
    case 4:
      return visit(std::integral_constant<int, 4>());
    default:
      return visit(std::integral_constant<int, 8>());
  }
}

// Words of a plane as a matrix: [rows of 16 y][columns of so many x][y of the row].
struct WordPlace {
  int column, y;
  __device__ WordPlace(int i, int columns) : column(i / 16 % columns), y(16 * (i / 16 / columns) + i % 16) {}
};

template <int kBits>
__device__ void pack_plane(const PartPair& pair, const uniform::Layout& format, int p, const uint8_t* canonical,
                           uint32_t* words) {
  const PartLayout& device = pair.device;
  const int columns = device.x_size / kWordCodes<kBits>, all_columns = format.planes[p].vectors_per_row();
  const auto* from = reinterpret_cast<const uint32_t*>(canonical + format.plane_offset[p]);
  for (int i = threadIdx.x; i < columns * device.y_size; i += kThreads) {
    const WordPlace at(i, columns);
    const int row = (pair.first_y + at.y) / 16, column = pair.first_x / kWordCodes<kBits> + at.column;
    const uint32_t word = from[(row * all_columns + column) * 16 + at.y % 16];
    const Place place = device.code_place(p, at.column * kWordCodes<kBits>, at.y);
    const int first = device.parameter_bytes() + place.byte;
    for_codes<kBits>([&](int bit, int bytes) {
      const uint32_t code = word >> bit & ((1u << kBits) - 1);
      const int byte = first + bytes;
      if (code != 0) atomicOr(&words[byte / 4], code << (8 * (byte % 4) + place.bit));
    });
  }
}

__device__ void pack_codes(const PartPair& pair, const uint8_t* canonical, uint8_t* part, uint32_t* words) {
  const PartLayout& device = pair.device;
  const uniform::Layout format = pair.canonical();
  const int count = device.bytes() / 4;
  for (int i = threadIdx.x; i < count; i += kThreads) words[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < device.parameters(); i += kThreads) {
    words[device.parameter_byte(i) / 4] = load16(canonical + format.range_offset(pair.group) + 2 * i) |
                                          load16(canonical + format.lo_offset(pair.group) + 2 * i) << 16;
  }
  for (int p = 0; p < format.plane_count; ++p) {
    with_bits(format.planes[p].bits,
              [&](auto bits) { pack_plane<decltype(bits)::value>(pair, format, p, canonical, words); });
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kThreads) reinterpret_cast<uint32_t*>(part)[i] = words[i];
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads) pack(const __grid_constant__ RepackRequest request) {
  extern __shared__ uint32_t words[];
  const Work work(request);
  for (int p = 0; p < work.parts(request.layout); ++p) {
    const PartPair pair = work.pair(request.layout, p);
    if (pair.device.bits == kFloat16Bits) {
      pack_halves(pair, work.canonical, work.part(request.layout, p));
    } else {
      pack_codes(pair, work.canonical, work.part(request.layout, p), words);
    }
  }
  if (request.layout.labels && threadIdx.x < kPageTokens) {
    work.block[work.label_byte(threadIdx.x)] = work.labels(request)[threadIdx.x];
  }
}

__device__ void unpack_halves(const PartPair& pair, const uint8_t* part, uint8_t* canonical) {
  const PartLayout& device = pair.device;
  for (int i = threadIdx.x; i < device.x_size * device.y_size; i += kThreads) {
    const int x = i % device.x_size, y = i / device.x_size;
    store16(canonical + pair.canonical16(x, y), load16(part + device.float16_byte(x, y)));
  }
}

template <int kBits>
__device__ void unpack_plane(const Work& work, const HeadLayout& layout, const uniform::Layout& format, int p) {
  const CodePlane& plane = format.planes[p];
  auto* out = reinterpret_cast<uint32_t*>(work.canonical + format.plane_offset[p]);
  for (int i = threadIdx.x; i < static_cast<int>(plane.bytes() / 4); i += kThreads) {
    const WordPlace at(i, plane.vectors_per_row());
    const int x = at.column * kWordCodes<kBits>;
    const int part = (work.keys ? x : at.y) / (work.keys && !layout.token_keys ? layout.head_dim : layout.span());
    const PartPair pair = work.pair(layout, part);
    const Place place = pair.device.code_place(p, x - pair.first_x, at.y - pair.first_y);
    const uint8_t* first = work.part(layout, part) + pair.device.parameter_bytes() + place.byte;
    uint32_t word = 0;
    for_codes<kBits>([&](int bit, int bytes) { word |= (first[bytes] >> place.bit & ((1u << kBits) - 1)) << bit; });
    out[i] = word;
  }
}

__global__ void __launch_bounds__(kThreads) unpack(const __grid_constant__ RepackRequest request) {
  const Work work(request);
  const HeadLayout& layout = request.layout;
  const int64_t bytes = work.keys ? request.key_bytes : request.value_bytes;
  // Parameters and labels do not fill their place.
  for (int64_t i = threadIdx.x; i < bytes / 4; i += kThreads) reinterpret_cast<uint32_t*>(work.canonical)[i] = 0;
  __syncthreads();
  for (int part = 0; part < work.parts(layout); ++part) {
    const PartPair pair = work.pair(layout, part);
    const uint8_t* from = work.part(layout, part);
    if (pair.device.bits == kFloat16Bits) {
      unpack_halves(pair, from, work.canonical);
      continue;
    }
    const uniform::Layout format = pair.canonical();
    for (int i = threadIdx.x; i < pair.device.parameters(); i += kThreads) {
      const uint8_t* at = from + pair.device.parameter_byte(i);
      store16(work.canonical + format.range_offset(pair.group) + 2 * i, load16(at));
      store16(work.canonical + format.lo_offset(pair.group) + 2 * i, load16(at + 2));
    }
  }
  const PartPair any = work.pair(layout, 0);
  if (any.device.bits != kFloat16Bits) {
    const uniform::Layout format = any.canonical();
    for (int p = 0; p < format.plane_count; ++p) {
      with_bits(format.planes[p].bits,
                [&](auto bits) { unpack_plane<decltype(bits)::value>(work, layout, format, p); });
    }
  }
  if (layout.labels && threadIdx.x < kPageTokens) {
    work.labels(request)[threadIdx.x] = work.block[work.label_byte(threadIdx.x)];
  }
}

// launch(request, blocks) for as many pages at a time as one takes.
template <class Launch>
cudaError_t for_requests(const RepackShape& shape, const RepackPage* pages, int count, const Launch& launch) {
  RepackRequest request;
  static_cast<RepackShape&>(request) = shape;
  for (int done = 0; done < count; done += RepackRequest::kMost) {
    const int some = std::min(count - done, RepackRequest::kMost);
    std::copy_n(pages + done, some, request.pages);
    launch(request, dim3(static_cast<unsigned>(shape.kv_heads), 2, static_cast<unsigned>(some)));
    const cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t pack_pages(const RepackShape& shape, const RepackPage* pages, int count, cudaStream_t stream) {
  const int keys = shape.layout.key().bytes(), values = shape.layout.value().bytes();
  const int shared = keys > values ? keys : values;
  const cudaError_t status = allow_shared_memory(pack, shared);
  if (status != cudaSuccess) return status;
  return for_requests(shape, pages, count, [&](const RepackRequest& request, const dim3& blocks) {
    pack<<<blocks, kThreads, static_cast<size_t>(shared), stream>>>(request);
  });
}

cudaError_t unpack_pages(const RepackShape& shape, const RepackPage* pages, int count, cudaStream_t stream) {
  return for_requests(shape, pages, count, [&](const RepackRequest& request, const dim3& blocks) {
    unpack<<<blocks, kThreads, 0, stream>>>(request);
  });
}

}  // namespace kvasir::cuda
