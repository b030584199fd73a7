// 16-bit rows in blocks of kRowBlockTokens tokens: taken when rows come, shared by forks until one of them writes,
// given back when the last of them leaves them behind.
//
// A list holds rows from a multiple of kPageTokens on (the window) or from the first token on (the sinks), so that
// sealing a page drops whole blocks and no row ever moves.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "cache/pool.h"
#include "kvasir/types.h"

namespace kvasir {

static_assert(kPageTokens % kRowBlockTokens == 0, "a page is so many whole blocks");

// One block, counted by its holders.
class RowBlock {
 public:
  RowBlock() = default;
  explicit RowBlock(Block memory) : shared_(new Shared{std::move(memory)}) {}
  RowBlock(const RowBlock& other) noexcept : shared_(other.shared_) {
    if (shared_) shared_->holders.fetch_add(1, std::memory_order_relaxed);
  }
  RowBlock(RowBlock&& other) noexcept : shared_(std::exchange(other.shared_, nullptr)) {}
  RowBlock& operator=(RowBlock other) noexcept {
    std::swap(shared_, other.shared_);
    return *this;
  }
  ~RowBlock() {
    if (shared_ && shared_->holders.fetch_sub(1, std::memory_order_acq_rel) == 1) delete shared_;
  }

  uint8_t* data() const { return shared_->memory.data(); }
  // Whether others hold it, too. Where nobody does, and nobody can copy this handle meanwhile, what they did with the
  // block has happened before.
  bool shared() const { return shared_->holders.load(std::memory_order_acquire) > 1; }

 private:
  struct Shared {
    Block memory;
    std::atomic<int64_t> holders{1};
  };
  Shared* shared_ = nullptr;
};

class RowBlocks {
 public:
  static int64_t blocks_of(int64_t rows) { return (rows + kRowBlockTokens - 1) / kRowBlockTokens; }

  // A change: the first `dropped` blocks go, and then rows from `written` on, counted from what is first after that,
  // are written, up to `rows`.
  struct Change {
    int64_t dropped;
    int64_t written;
    int64_t rows;
  };

  int64_t count() const { return static_cast<int64_t>(blocks_.size()); }
  uint8_t* const* addresses() const { return addresses_.data(); }

  // Whether a change needs other blocks than there are.
  bool changes(const Change& change) const { return change.dropped > 0 || added(change) > 0 || copies(change); }
  // Blocks that must be taken for it, and those that nobody holds any more after it.
  int64_t missing(const Change& change) const;
  int64_t returned(const Change& change) const;
  // The same where rows grow in any number of steps from `before` to `after`, of which there are never more than
  // `most`: `dropped` of the blocks that are there now are then left behind, and none is given back meanwhile.
  int64_t missing_in_steps(int64_t before, int64_t after, int64_t most, int64_t dropped) const;
  // The blocks after it. take(): a new block. copy(from, to): their memory. Nothing that is held by others is to be
  // written then, and what was there before stays as it was as long as rows are not.
  template <class Take, class Copy>
  RowBlocks after(const Change& change, const Take& take, const Copy& copy) const;

  // Keeps the blocks of the first rows.
  void keep(int64_t rows);
  // The blocks of the first `rows` rows, where those from row `first` on are to be written: what others hold of them is
  // copied. take and copy as above; shared_from of them are taken.
  template <class Take, class Copy>
  RowBlocks own(int64_t first, int64_t rows, const Take& take, const Copy& copy) const;
  int64_t shared_from(int64_t first, int64_t rows) const;
  // Blocks that a change dropped stay beside the others, for rows to come, until then.
  void give_back_spare() { spare_.clear(); }
  void give_back_spare(int64_t blocks) { spare_.resize(spare_.size() - static_cast<size_t>(blocks)); }
  // Whether others hold any of the blocks.
  bool shared() const {
    return std::any_of(blocks_.begin(), blocks_.end(), [](const RowBlock& each) { return each.shared(); });
  }

 private:
  // Blocks behind those that stay.
  int64_t added(const Change& change) const {
    const int64_t kept = count() > change.dropped ? count() - change.dropped : 0;
    return blocks_of(change.rows) > kept ? blocks_of(change.rows) - kept : 0;
  }
  // Whether the first row that is written shares its block with rows that others see.
  bool copies(const Change& change) const {
    const int64_t block = change.dropped + change.written / kRowBlockTokens;
    return change.written < change.rows && block < count() && blocks_[static_cast<size_t>(block)].shared();
  }
  // Blocks without rows that nobody else holds: they may hold others.
  int64_t spare(const Change& change) const;
  void add(RowBlock block) {
    addresses_.push_back(block.data());
    blocks_.push_back(std::move(block));
  }

  std::vector<RowBlock> blocks_;
  std::vector<uint8_t*> addresses_;  // theirs
  std::vector<RowBlock> spare_;
};

template <class Take, class Copy>
RowBlocks RowBlocks::own(int64_t first, int64_t rows, const Take& take, const Copy& copy) const {
  RowBlocks next;
  for (int64_t i = 0; i < blocks_of(rows); ++i) {
    const RowBlock& block = blocks_[static_cast<size_t>(i)];
    if (first < rows && i >= first / kRowBlockTokens && block.shared()) {
      RowBlock mine = take();
      copy(block.data(), mine.data());
      next.add(std::move(mine));
    } else {
      next.add(block);
    }
  }
  return next;
}

template <class Take, class Copy>
RowBlocks RowBlocks::after(const Change& change, const Take& take, const Copy& copy) const {
  RowBlocks next;
  const int64_t written = change.dropped + change.written / kRowBlockTokens;
  for (int64_t i = change.dropped; i < count(); ++i) {
    const RowBlock& block = blocks_[static_cast<size_t>(i)];
    if (i == written && copies(change)) {
      RowBlock own = take();
      copy(block.data(), own.data());
      next.add(std::move(own));
    } else {
      next.add(block);
    }
  }
  next.spare_ = spare_;
  for (int64_t i = 0; i < change.dropped && i < count(); ++i) {
    const RowBlock& block = blocks_[static_cast<size_t>(i)];
    if (!block.shared()) next.spare_.push_back(block);
  }
  while (next.count() < blocks_of(change.rows)) {
    if (next.spare_.empty()) {
      next.add(take());
    } else {
      next.add(std::move(next.spare_.back()));
      next.spare_.pop_back();
    }
  }
  return next;
}

}  // namespace kvasir
