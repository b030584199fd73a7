#include <algorithm>

#include "kernels/cuda/rows/row_octets.cuh"
#include "kernels/cuda/rows/rows.h"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kMostTokenBlocks = 8192;  // a block takes every so many tokens: enough of them to fill any device

// A thread keeps its side, head and channels, and walks over tokens.
template <class Source, class Target>
__global__ void __launch_bounds__(kThreads)
    move_rows(const __grid_constant__ RowShape shape, const __grid_constant__ Source source,
              const __grid_constant__ Target target, int64_t count) {
  const int octets = shape.head_dim / kOctet;
  const int index = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int side = static_cast<int>(blockIdx.z);
  if (index >= shape.kv_heads * octets || !source.has(side) || !target.has(side)) return;
  RowPlace at = {side, blockIdx.y, index / octets, index % octets * kOctet};
  for (; at.token < count; at.token += gridDim.y) target.store(at, source.load(at));
}

// The same where each token has a place of its own, in device memory.
__global__ void __launch_bounds__(kThreads)
    move_listed_rows(const __grid_constant__ RowShape shape, const __grid_constant__ InputSource source,
                     const RowMove* moves, int64_t count) {
  const int octets = shape.head_dim / kOctet;
  const int index = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (index >= shape.kv_heads * octets) return;
  RowPlace at = {static_cast<int>(blockIdx.z), 0, index / octets, index % octets * kOctet};
  for (int64_t i = blockIdx.y; i < count; i += gridDim.y) {
    const RowMove move = moves[i];
    at.token = move.token;
    store_octet(tile_octet(move.block, move.row, shape, at), at.side, source.load(at));
  }
}

// The same where descriptions say which row is the newest.
__global__ void __launch_bounds__(kThreads)
    move_newest_rows(const __grid_constant__ RowShape shape, const __grid_constant__ InputSource source,
                     const DeviceSequence* const* sequences, int64_t count) {
  const int octets = shape.head_dim / kOctet;
  const int index = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (index >= shape.kv_heads * octets) return;
  RowPlace at = {static_cast<int>(blockIdx.z), blockIdx.y, index / octets, index % octets * kOctet};
  for (; at.token < count; at.token += gridDim.y) {
    const DeviceSequence& sequence = *sequences[at.token];
    const bool sinks = sequence.window.end == 0;
    const RowSpan rows = sinks ? sequence.sinks : sequence.window;
    if (rows.end == 0 || (sinks && sequence.page_count > 0)) continue;
    const int row = rows.end - 1;
    auto* block = reinterpret_cast<uint8_t*>(rows.blocks[row / kTileSize]);
    store_octet(tile_octet(block, row % kTileSize, shape, at), at.side, source.load(at));
  }
}

// A thread keeps its octet and goes through the rows in order, so none is written before it was read.
__global__ void __launch_bounds__(kThreads)
    copy_rows_in_order(const __grid_constant__ RowShape shape, const __grid_constant__ RowCopies copies) {
  const int octets = shape.head_dim / kOctet;
  const int index = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (index >= shape.kv_heads * octets) return;
  const RowPlace at = {static_cast<int>(blockIdx.z), 0, index / octets, index % octets * kOctet};
  for (int i = 0; i < copies.count; ++i) {
    const uint8_t* from = tile_octet(const_cast<uint8_t*>(copies.from[i]), copies.from_rows[i], shape, at);
    store_octet(tile_octet(copies.to[i], copies.to_rows[i], shape, at), at.side, load_octet(from, at.side));
  }
}

bool known(const RowShape& shape) {
  return shape.head_dim >= 32 && shape.head_dim <= 256 && shape.head_dim % 16 == 0 && shape.kv_heads > 0;
}

dim3 grid_of(const RowShape& shape, int64_t count) {
  const int octets = shape.kv_heads * (shape.head_dim / kOctet);
  return dim3((octets + kThreads - 1) / kThreads, static_cast<unsigned>(std::min(count, kMostTokenBlocks)), 2);
}

template <class Source, class Target>
cudaError_t launch(const RowShape& shape, const Source& source, const Target& target, int64_t count,
                   cudaStream_t stream) {
  if (!known(shape) || count < 0) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  move_rows<<<grid_of(shape, count), kThreads, 0, stream>>>(shape, source, target, count);
  return cudaGetLastError();
}

constexpr int kFewBlocks = 16;
constexpr int kManyBlocks = 256;

// move(rows, first, count): tokens first .. first + count - 1 of `total`, which stand at rows.first, ... of its list.
template <int kBlocks, class Move>
cudaError_t for_tile_rows(const RowShape& shape, RowList blocks, int64_t row, int64_t total, const Move& move) {
  for (int64_t done = 0; done < total;) {
    const int64_t block = (row + done) / kTileSize, first = (row + done) % kTileSize;
    const int64_t count = std::min(total - done, int64_t{kBlocks} * kTileSize - first);
    TileRows<kBlocks> rows = {{}, shape, first};
    std::copy_n(blocks + block, (first + count - 1) / kTileSize + 1, rows.list.blocks);
    const cudaError_t error = move(rows, done, count);
    if (error != cudaSuccess) return error;
    done += count;
  }
  return cudaSuccess;
}

template <class Move>
cudaError_t with_tile_rows(const RowShape& shape, RowList blocks, int64_t row, int64_t total, const Move& move) {
  if (row < 0 || total < 0) return cudaErrorInvalidValue;
  return row % kTileSize + total <= kFewBlocks * kTileSize
             ? for_tile_rows<kFewBlocks>(shape, blocks, row, total, move)
             : for_tile_rows<kManyBlocks>(shape, blocks, row, total, move);
}

}  // namespace

cudaError_t append_rows(const RowShape& shape, const InputRows& input, int64_t first, int64_t count, RowList window,
                        int64_t row, cudaStream_t stream) {
  if (!input.readable(first, count)) return cudaErrorInvalidValue;
  return with_tile_rows(shape, window, row, count, [&](const auto& rows, int64_t done, int64_t some) {
    return launch(shape, InputSource::of(shape, input, first + done), rows, some, stream);
  });
}

cudaError_t append_listed_rows(const RowShape& shape, const InputRows& input, const RowMove* moves, int64_t count,
                               cudaStream_t stream) {
  if (!input.readable(0, count) || !known(shape)) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  move_listed_rows<<<grid_of(shape, count), kThreads, 0, stream>>>(shape, InputSource::of(shape, input, 0), moves,
                                                                   count);
  return cudaGetLastError();
}

cudaError_t append_newest_rows(const RowShape& shape, const InputRows& input, const DeviceSequence* const* sequences,
                               int64_t count, cudaStream_t stream) {
  if (!input.readable(0, count) || !known(shape)) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  move_newest_rows<<<grid_of(shape, count), kThreads, 0, stream>>>(shape, InputSource::of(shape, input, 0), sequences,
                                                                   count);
  return cudaGetLastError();
}

cudaError_t stage_rows(const RowShape& shape, const InputRows& input, int64_t first, int64_t count,
                       const Staging& staging, int64_t row, cudaStream_t stream) {
  if (!input.readable(first, count) || row + count > staging.rows) return cudaErrorInvalidValue;
  return launch(shape, InputSource::of(shape, input, first), StagingRows{staging, shape, row}, count, stream);
}

cudaError_t gather_rows(const RowShape& shape, RowList window, int64_t row, int64_t count, const Staging& staging,
                        int64_t to, cudaStream_t stream) {
  if (to + count > staging.rows) return cudaErrorInvalidValue;
  return with_tile_rows(shape, window, row, count, [&](const auto& rows, int64_t done, int64_t some) {
    return launch(shape, rows, StagingRows{staging, shape, to + done}, some, stream);
  });
}

cudaError_t copy_rows(const RowShape& shape, const RowCopies& copies, cudaStream_t stream) {
  if (!known(shape) || copies.count < 0 || copies.count > RowCopies::kMost) return cudaErrorInvalidValue;
  if (copies.count == 0) return cudaSuccess;
  copy_rows_in_order<<<grid_of(shape, 1), kThreads, 0, stream>>>(shape, copies);
  return cudaGetLastError();
}

cudaError_t read_rows(const RowShape& shape, RowList window, int64_t row, int64_t count, const FloatRows& out,
                      cudaStream_t stream) {
  return with_tile_rows(shape, window, row, count, [&](const auto& rows, int64_t done, int64_t some) {
    return launch(shape, rows, FloatOctets{out.from(done)}, some, stream);
  });
}

cudaError_t restore_rows(const RowShape& shape, const FloatRows& from, int64_t count, RowList window, int64_t row,
                         cudaStream_t stream) {
  return with_tile_rows(shape, window, row, count, [&](const auto& rows, int64_t done, int64_t some) {
    return launch(shape, FloatOctets{from.from(done)}, rows, some, stream);
  });
}

}  // namespace kvasir::cuda
