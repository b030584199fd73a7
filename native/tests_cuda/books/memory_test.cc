// Memory of the device: what is asked of the driver, and when.
#include "books/host_runtime.h"
#include "check.h"
#include "engine/cuda/device_queue.h"
#include "engine/cuda/pieces.h"

namespace {

using namespace kvasir;
using namespace kvasir::cuda;

constexpr size_t kMany = size_t{100} << 20;  // more than a slab

bool clear(const void* memory, size_t bytes) {
  const auto* const begin = static_cast<const uint8_t*>(memory);
  for (size_t i = 0; i < bytes; ++i) {
    if (begin[i] != 0) return false;
  }
  return true;
}

}  // namespace

HOST_CASE("device memory: nothing breaks what another thread records") {
  host_runtime::state().unsafe_calls = 0;
  {
    DeviceArena arena(0);
    const DeviceScratch first(arena, kMany), second(arena, kMany);
    CHECK(host_runtime::state().allocations > 0, "nothing was asked for");
  }
  CHECK(host_runtime::state().allocations == 0, host_runtime::state().allocations << " slabs are left");
  CHECK(host_runtime::state().unsafe_calls == 0, host_runtime::state().unsafe_calls << " calls");
  CHECK(host_runtime::state().mode == cudaStreamCaptureModeGlobal, "the thread's mode is another now");
}

HOST_CASE("device memory: what is refused once is had later, and no error is left behind") {
  DeviceArena arena(0);
  host_runtime::state().allocations_left = 0;
  try {
    const DeviceScratch memory(arena, kMany);
    CHECK(false, "memory was had");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kOutOfMemory, error.what());
  }
  CHECK(cudaGetLastError() == cudaSuccess, "an error is left for the next launch");
  host_runtime::state().allocations_left = -1;
  const DeviceScratch memory(arena, kMany);
  CHECK(memory.as<void>() != nullptr, "none");
}

HOST_CASE("device errors: none is left for the next launch to be blamed for") {
  host_runtime::state().last = cudaErrorInvalidValue;
  try {
    kvasir::cuda::check(cudaErrorInvalidValue, "a call");
    CHECK(false, "nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kDeviceFailed, error.what());
  }
  CHECK(cudaGetLastError() == cudaSuccess, "it is");
}

HOST_CASE("workspaces: plans with as many counters share one, whose counters are clear") {
  DeviceArena arena(0);
  Workspaces workspaces;
  void* const small = workspaces.at(arena, nullptr, 512, 4096);
  CHECK(clear(small, 512), "counters are not clear");
  CHECK(workspaces.at(arena, nullptr, 512, 1024) == small, "less room moved it");
  CHECK(workspaces.at(arena, nullptr, 256, 4096) != small, "other counters share it");
  void* const large = workspaces.at(arena, nullptr, 512, size_t{1} << 20);
  CHECK(clear(large, 512), "counters are not clear");
  CHECK(workspaces.at(arena, nullptr, 512, 4096) == large, "the larger one is not kept");
  host_runtime::state().allocations_left = 0;
  try {
    workspaces.at(arena, nullptr, 512, kMany);
    CHECK(false, "memory was had");
  } catch (const Error&) {
  }
  host_runtime::state().allocations_left = -1;
  CHECK(workspaces.at(arena, nullptr, 512, 4096) == large, "a refusal lost it");
}

HOST_CASE("pieces: each goes where it belongs") {
  DeviceArena arena(0);
  Workspaces workspaces;
  const DeviceQueue queue{arena, nullptr, workspaces};
  const DeviceScratch there = queue.take(1024);
  Pieces pieces(queue, 3, 48);
  const uint64_t words[] = {1, 2, 3};
  for (int i = 0; i < 3; ++i) pieces.add(there.as<uint64_t>() + 10 * i, words, sizeof(uint64_t) * (i + 1));
  pieces.write("pieces");
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j <= i; ++j) CHECK(there.as<uint64_t>()[10 * i + j] == words[j], i << ", " << j);
  }
}
