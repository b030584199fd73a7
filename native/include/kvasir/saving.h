// Sequences as bytes: saved, moved, and restored on another machine, on another backend or by a later version. What
// comes back is exactly what was saved, or an error says why not. docs/format.md has the bytes.
//
// A **block** is 128 tokens of all layers, both sides, with what reading them needs beside its predecessors. Blocks are
// what stores keep: a prefix of them makes a sequence. The **state** of a sequence is all else: the newest tokens, the
// first ones, lengths, positions, statistics of queries. Blocks and a state make a sequence as it was.
//
//   std::unique_ptr<Saving> saving(Saving::create(*cache, sequence));   // one moment; the sequence goes on
//   for (int64_t i = 0; i < saving->blocks(); ++i) { ... saving->write_block(i, nullptr, memory, capacity); }
//   saving->write_state(memory, capacity);
//
//   std::unique_ptr<Restoring> restoring(Restoring::create(*cache));
//   restoring->add_block(bytes, count, nullptr);                      // in order
//   restoring->set_state(bytes, count);
//   int64_t sequence = restoring->finish();
//
// Bytes that are not right are refused with kBadBytes, whose reason is a BadBytes; the cache is then as it was. Each
// byte is read once, and nothing of it is used before its checksum and its meaning have been checked.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "kvasir/cache.h"

namespace kvasir {

// Bytes of a fingerprint, and of a chain hash: SHA-256.
constexpr int kDigestBytes = 32;

// A sequence as it was when Cache::save was asked for it. Pages are held until it is destroyed, and are not copied
// before they are written; if one of them gives up precision until then ("progressive"), it is written as it is by
// then. To be destroyed before its cache. Not to be used by two threads at once; the sequence may be, meanwhile.
class Saving {
 public:
  static Saving* create(Cache& cache, int64_t sequence);
  static void destroy(Saving* saving);
  ~Saving();
  Saving(const Saving&) = delete;
  Saving& operator=(const Saving&) = delete;

  // Blocks of the sequence, and how many of them, from the first on, all layers have sealed: those are what stores
  // keep.
  int64_t blocks() const;
  int64_t whole_blocks() const;
  // Tokens before the first block: it holds them, too.
  int64_t sinks() const;

  // Writes a block and returns its bytes. Writes nothing where capacity is smaller. chain: kDigestBytes that name the
  // tokens up to the end of the block, or null.
  int64_t write_block(int64_t block, const uint8_t* chain, uint8_t* out, int64_t capacity);
  // The same for the state, once every block has been written: it knows them again.
  int64_t write_state(uint8_t* out, int64_t capacity);

  struct Impl;

 private:
  explicit Saving(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A sequence that is being restored. Memory is taken as blocks come, as far as budgets have room; where pages of others
// would have to give up precision for it, that waits for finish. Nothing is seen of it before, and all goes back where
// it is destroyed without. To be destroyed before its cache. Not to be used by two threads at once.
class Restoring {
 public:
  static Restoring* create(Cache& cache);
  // Behind the blocks of a sequence of the cache, whose pages the new one shares: the first block to come is the one
  // that follows them, and there can be no state. The sequence, which may go on or end meanwhile, has to end with a
  // block: no token behind it, no guesses, no moved positions.
  static Restoring* create_behind(Cache& cache, int64_t sequence);
  static void destroy(Restoring* restoring);
  ~Restoring();
  Restoring(const Restoring&) = delete;
  Restoring& operator=(const Restoring&) = delete;

  // The next block. chain: what its chain hash must be, or null where any will do. Throws kBadBytes, kBudgetExceeded or
  // kOutOfMemory, after which there is nothing left to do but to destroy this. Where a device takes checksums, a
  // damaged page may be told by a later call, by finish at the latest. From pinned memory (cudaHostAlloc,
  // cudaHostRegister) a device copies in place.
  void add_block(const uint8_t* bytes, int64_t count, const uint8_t* chain);
  // The state, after all blocks. Throws kBadBytes where the blocks are not those that it was saved with.
  void set_state(const uint8_t* bytes, int64_t count);

  // Makes the sequence, in one step, and returns its id: with a state as it was saved; without one as a sequence that
  // was cut after its last block, which has seen no queries. Throws kBadBytes where something is missing,
  // kBudgetExceeded or kOutOfMemory.
  int64_t finish();

  struct Impl;

 private:
  explicit Restoring(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Memory of this machine for images that a cache is to restore, where plain memory is not as good: pinned for one on a
// device. Slow to get; may be destroyed before the cache or after it.
class ImageMemory {
 public:
  // Null where plain memory is as good. Throws kOutOfMemory.
  static ImageMemory* create(Cache& cache, int64_t bytes);
  static void destroy(ImageMemory* memory);
  ImageMemory(const ImageMemory&) = delete;
  ImageMemory& operator=(const ImageMemory&) = delete;

  uint8_t* data() const { return bytes_.get(); }

 private:
  explicit ImageMemory(std::shared_ptr<uint8_t> bytes) : bytes_(std::move(bytes)) {}
  std::shared_ptr<uint8_t> bytes_;
};

}  // namespace kvasir
