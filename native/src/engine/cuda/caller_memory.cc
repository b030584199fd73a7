#include "engine/cuda/caller_memory.h"

#include <string>

#include "base/checks.h"

namespace kvasir::cuda {
namespace {

// Kernels load 16 bytes at a time.
void check_address(const char* what, const void* address) {
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0) {
    throw Error(ErrorCode::kInvalidArgument, std::string(what) + " on the device must begin at a multiple of 16 bytes");
  }
  check_reachable(what, address);
}

// Kernels load vectors of 16 bytes from every row, too.
void check_rows(const char* what, const RowsView& rows) {
  check_address(what, rows.data);
  const auto bytes = static_cast<int64_t>(element_bytes(rows.type));
  if (rows.token_stride * bytes % 16 != 0 || rows.head_stride * bytes % 16 != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(what) + " on the device must have strides of multiples of 16 bytes");
  }
}

}  // namespace

void check_reachable(const char* what, const void* address) {
  cudaPointerAttributes memory;
  check(cudaPointerGetAttributes(&memory, address), "asking for an address");
  if (memory.type == cudaMemoryTypeUnregistered || (memory.type == cudaMemoryTypeDevice && memory.device != kDevice)) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(what) + " are not in memory that device " + std::to_string(kDevice) + " can reach");
  }
}

void require_apart(const DeviceQueries& device, size_t query_bytes, size_t output_bytes) {
  const auto queries = reinterpret_cast<uintptr_t>(device.queries.data);
  const auto outputs = reinterpret_cast<uintptr_t>(device.outputs.data);
  const size_t apart = queries < outputs ? outputs - queries : queries - outputs;
  const size_t bytes = queries < outputs ? query_bytes : output_bytes;
  if (apart >= bytes) return;
  refuse("queries and outputs in device memory overlap: they begin " + std::to_string(apart) +
         " bytes apart, and the first of them have " + std::to_string(bytes));
}

InputRows input_of(const DeviceLayer& layer, const TokenRows& rows, uint32_t* refused) {
  InputRows input = {};
  input.tokens = rows.tokens;
  input.refused = refused;
  for (int side = 0; side < 2; ++side) {
    const RowsView& given = rows.sides[side];
    check_rows(side == 0 ? "keys" : "values", given);
    input.sides[side] = given.data;
    input.types[side] = given.type;
    input.token_strides[side] = given.token_stride;
    input.head_strides[side] = given.head_stride;
  }
  input.key_scaling = layer.key_scaling();
  return input;
}

}  // namespace kvasir::cuda
