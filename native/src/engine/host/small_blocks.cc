#include "engine/host/small_blocks.h"

#include <new>
#include <string>

#include "base/system_memory.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

class Bits {
 public:
  bool has(size_t i) const { return (words_[i / 64] >> (i % 64) & 1) != 0; }
  void set(size_t i) { words_[i / 64] |= uint64_t{1} << (i % 64); }
  void clear(size_t i) { words_[i / 64] &= ~(uint64_t{1} << (i % 64)); }
  // The first that is set; there is one.
  size_t first() const {
    size_t word = 0;
    while (words_[word] == 0) ++word;
    return word * 64 + static_cast<size_t>(__builtin_ctzll(words_[word]));
  }

 private:
  uint64_t words_[16] = {};
};

}  // namespace

// Stands at the beginning of its memory; blocks fill it to the end.
struct SmallBlocks::Slab {
  explicit Slab(size_t size) : size(size), blocks((kSlabBytes - sizeof(Slab)) / size) {
    for (size_t i = 0; i < blocks; ++i) free.set(i);
  }

  const size_t size;
  const size_t blocks;
  size_t used = 0;
  Bits free, written;  // `written`: since its pages last went back
  Slab* before = nullptr;
  Slab* after = nullptr;

  uint8_t* block(size_t i) { return reinterpret_cast<uint8_t*>(this) + kSlabBytes - (blocks - i) * size; }
  size_t index_of(const uint8_t* memory) { return static_cast<size_t>(memory - block(0)) / size; }

  // The free blocks around one of them go back, where it is worth it.
  void return_around(size_t i) {
    size_t begin = i, end = i + 1, bytes = 0;
    while (begin > 0 && free.has(begin - 1)) --begin;
    while (end < blocks && free.has(end)) ++end;
    for (size_t at = begin; at < end; ++at) bytes += written.has(at) ? size : 0;
    if (bytes < kLeastReturned) return;
    return_pages(block(begin), block(end));
    for (size_t at = begin; at < end; ++at) written.clear(at);
  }
};

SmallBlocks::Rounded SmallBlocks::round_up(size_t bytes) {
  if (bytes < kLeastSize) bytes = kLeastSize;
  size_t step = 64, level = 0;
  for (; bytes > 16 * step; ++level) step *= 2;
  const size_t steps = (bytes + step - 1) / step;
  return {steps * step, level * 16 + steps};
}

SmallBlocks::Slab* SmallBlocks::make_slab(size_t size) {
  static_assert(kSlabBytes / kLeastSize <= 16 * 64, "a bit for each block");
  static_assert(std::size_t{64} << 5 == kMost / 16 || kMost == 0, "the last size");
  void* memory = take_aligned(kSlabBytes, kSlabBytes);
  if (!memory) throw Error(ErrorCode::kOutOfMemory, "no memory for " + std::to_string(kSlabBytes) + " bytes");
  return new (memory) Slab(size);
}

void SmallBlocks::link(Size& size, Slab* slab) {
  slab->before = nullptr;
  slab->after = size.open;
  if (size.open) size.open->before = slab;
  size.open = slab;
}

void SmallBlocks::unlink(Size& size, Slab* slab) {
  (slab->before ? slab->before->after : size.open) = slab->after;
  if (slab->after) slab->after->before = slab->before;
}

uint8_t* SmallBlocks::take(size_t bytes) {
  const Rounded rounded = round_up(bytes);
  Size& size = sizes_[rounded.index];
  std::lock_guard<std::mutex> lock(size.mutex);
  if (!size.open) link(size, make_slab(rounded.bytes));
  Slab* slab = size.open;
  const size_t i = slab->free.first();
  slab->free.clear(i);
  slab->written.set(i);
  if (++slab->used == slab->blocks) unlink(size, slab);
  return slab->block(i);
}

void SmallBlocks::give_back(uint8_t* memory, size_t bytes) noexcept {
  Size& size = sizes_[round_up(bytes).index];
  auto* slab = reinterpret_cast<Slab*>(reinterpret_cast<uintptr_t>(memory) / kSlabBytes * kSlabBytes);
  const std::lock_guard<std::mutex> lock(size.mutex);
  const size_t i = slab->index_of(memory);
  slab->free.set(i);
  if (slab->used-- == slab->blocks) link(size, slab);
  if (slab->used > 0 || (size.open == slab && !slab->after)) return slab->return_around(i);  // one stays for the next
  unlink(size, slab);
  return_pages(reinterpret_cast<uint8_t*>(slab), reinterpret_cast<uint8_t*>(slab) + kSlabBytes);
  give_back_aligned(slab);
}

}  // namespace kvasir
