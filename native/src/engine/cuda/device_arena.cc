#include "engine/cuda/device_arena.h"

#include <algorithm>
#include <cstdlib>

#include "engine/cuda/status.h"
#include "engine/cuda/stream.h"

namespace kvasir::cuda {
namespace {

size_t aligned(size_t bytes) {
  return (std::max<size_t>(bytes, 1) + DeviceArena::kAlignment - 1) / DeviceArena::kAlignment * DeviceArena::kAlignment;
}

// For tests: memory that was never used is mostly zeros, and hides what reads it before anything was written there.
void make_stale(void* memory, size_t bytes) {
  static const bool wanted = std::getenv("KVASIR_STALE_MEMORY") != nullptr;
  if (!wanted) return;
  constexpr int kNotANumber = 0xff;  // every byte of it, in any floating-point format
  const Stream stream;               // of its own: others may be recording a graph
  check(cudaMemsetAsync(memory, kNotANumber, bytes, stream), "stale memory");
  check(cudaStreamSynchronize(stream), "stale memory");
}

}  // namespace

DeviceArena::~DeviceArena() {
  try {
    const CurrentDevice current(device_);
    const RelaxedCapture relaxed;
    for (const auto& [memory, bytes] : slabs_) cudaFree(memory);
  } catch (const Error&) {
    // The device is gone, and its memory with it.
  }
}

uint8_t* DeviceArena::take(size_t bytes, bool) {
  const size_t wanted = aligned(bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  stock_nodes(used_.size() + 1 + slabs_.size());
  auto found = by_size_.lower_bound({wanted, 0});
  if (found == by_size_.end()) {
    add_slab(wanted);
    found = by_size_.lower_bound({wanted, 0});
  }
  const auto [size, address] = *found;
  used_.emplace(address, wanted);
  remove_free(free_.find(address));
  if (size > wanted) add_free(address + wanted, size - wanted);
  return reinterpret_cast<uint8_t*>(address);
}

void DeviceArena::shrink(uint8_t* memory, size_t, size_t kept) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto used = used_.find(reinterpret_cast<uintptr_t>(memory));
  const size_t left = aligned(kept);
  if (left >= used->second) return;
  release(used->first + left, used->second - left);
  used->second = left;
}

void DeviceArena::give_back(uint8_t* memory, size_t, bool) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto used = used_.find(reinterpret_cast<uintptr_t>(memory));
  release(used->first, used->second);
  used_.erase(used);
}

// With the mutex held, like what follows.
void DeviceArena::add_slab(size_t bytes) {
  const CurrentDevice current(device_);
  const RelaxedCapture relaxed;
  slabs_.reserve(slabs_.size() + 1);
  stock_nodes(used_.size() + 1 + slabs_.size() + 1);
  // A part of what there is, so that many small requests take few slabs, and large caches few large ones.
  size_t all = 0;
  for (const auto& slab : slabs_) all += slab.second;
  size_t size = std::max({bytes, kSlabBytes, aligned(all / 4)});
  void* memory = nullptr;
  cudaError_t status = cudaMalloc(&memory, size);
  if (status == cudaErrorMemoryAllocation && size > bytes) {
    cudaGetLastError();
    size = bytes;
    status = cudaMalloc(&memory, size);
  }
  check(status, "the cache");
  slabs_.emplace_back(static_cast<uint8_t*>(memory), size);
  make_stale(memory, size);
  const auto address = reinterpret_cast<uintptr_t>(memory);
  // Slabs that the driver happens to put side by side stay apart.
  add_free(address, size);
}

void DeviceArena::stock_nodes(size_t most) {
  if (spare_.capacity() < most) spare_.reserve(2 * most);
  while (free_.size() + spare_.size() < most) {
    ByAddress by_address = {{0, 0}};
    BySize by_size = {{0, 0}};
    spare_.push_back({by_address.extract(by_address.begin()), by_size.extract(by_size.begin())});
  }
}

void DeviceArena::release(uintptr_t begin, size_t bytes) noexcept {
  const auto same_slab = [this](uintptr_t boundary) {
    return std::none_of(slabs_.begin(), slabs_.end(),
                        [&](const auto& slab) { return reinterpret_cast<uintptr_t>(slab.first) == boundary; });
  };
  const auto after = free_.lower_bound(begin);
  if (after != free_.end() && after->first == begin + bytes && same_slab(after->first)) {
    bytes += after->second;
    remove_free(after);
  }
  const auto next = free_.lower_bound(begin);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin && same_slab(begin)) {
      begin = before->first;
      bytes += before->second;
      remove_free(before);
    }
  }
  add_free(begin, bytes);
}

void DeviceArena::add_free(uintptr_t begin, size_t bytes) noexcept {
  Nodes nodes = std::move(spare_.back());
  spare_.pop_back();
  nodes.by_address.key() = begin;
  nodes.by_address.mapped() = bytes;
  nodes.by_size.value() = {bytes, begin};
  free_.insert(std::move(nodes.by_address));
  by_size_.insert(std::move(nodes.by_size));
}

void DeviceArena::remove_free(ByAddress::iterator piece) noexcept {
  const std::pair<size_t, uintptr_t> same = {piece->second, piece->first};
  spare_.push_back({free_.extract(piece), by_size_.extract(same)});
}

}  // namespace kvasir::cuda
