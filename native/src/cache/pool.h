// The pool: memory for pages and windows under hard byte budgets.
//
// A caller reserves the sum of what it needs before it changes anything, and then takes blocks out of the reservation;
// if the sum does not fit, nothing has happened. Accounting is by requested bytes, per layer and in total.
//
// A reservation that stands for long, a promise, can lend what it is not asked for yet. The pool only counts what is
// lent; that it can be had again is for those to see to who give out room (Memory).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/arena.h"
#include "kvasir/error.h"

namespace kvasir {

class Pool;

// kBudgetExceeded, with its numbers. `layer`: the one that needs the bytes, kAllLayers where several do; `left`: what
// could be had.
enum class BudgetOwner { kCache, kLayer };
Error budget_error(BudgetOwner owner, int layer, const std::string& text, int64_t needed, int64_t left);

// kRows: the 16-bit rows of a sequence, and the sums of the queries that it saw.
enum class BlockKind : int { kPage = 0, kRows = 1, kSideTable = 2 };

// Whose memory a block is: the engine's, or in any case this machine's.
enum class BlockPlace { kEngine, kHost };

// Owns memory of the pool and gives it back. 64-byte aligned, uninitialised. Only blocks of the host can be looked into
// whatever the engine.
class Block {
 public:
  Block() = default;
  Block(Block&& other) noexcept { *this = std::move(other); }
  Block& operator=(Block&& other) noexcept;
  ~Block() { reset(); }

  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }
  void reset();
  // Keeps the first `bytes` where they are and gives the rest back, for good. For blocks taken as shrinkable.
  void shrink(int64_t bytes);

 private:
  friend class Pool;
  std::shared_ptr<Pool> pool_;
  Arena* arena_ = nullptr;
  uint8_t* data_ = nullptr;
  int64_t taken_ = 0;
  int64_t bytes_ = 0;  // of them, those that it still has
  bool shrinkable_ = false;
  int layer_ = 0;
  BlockKind kind_ = BlockKind::kPage;
};

class Pool : public std::enable_shared_from_this<Pool> {
 public:
  struct Usage {
    int64_t bytes = 0;
    int64_t blocks = 0;
  };

  // Budgets in bytes, 0 for none. `arena`: of the engine.
  Pool(std::shared_ptr<Arena> arena, int64_t budget, std::vector<int64_t> layer_budgets);

  // Bytes that nobody else can take any more. What is left of it at its end goes back.
  class Reservation {
   public:
    Reservation(Reservation&& other) noexcept = default;
    ~Reservation();
    int64_t left() const { return left_; }
    int64_t lent() const { return lent_; }
    // Takes over bytes of what another one of the same layer has left, and pays its loans back with others.
    void draw(Reservation& other, int64_t bytes, int64_t paid_back);
    // So much more of what was drawn from it is lent from now on.
    void lend(int64_t bytes);
    // Is as it was before some draws: what they took is held for it again, by whoever drew it until that goes back.
    void restore(int64_t left, int64_t lent);
    // At most as many bytes, in all, as were reserved. Throws kOutOfMemory.
    Block take(BlockKind kind, int64_t bytes, BlockPlace place = BlockPlace::kEngine, bool shrinkable = false);

   private:
    friend class Pool;
    Reservation(std::shared_ptr<Pool> pool, int layer, int64_t bytes)
        : pool_(std::move(pool)), layer_(layer), left_(bytes) {}
    std::shared_ptr<Pool> pool_;
    int layer_;
    int64_t left_;
    int64_t lent_ = 0;
  };

  // `returning`: bytes of the layer that the caller gives back as soon as it has these. They do not count any more,
  // though memory holds both for that moment. Throws kBudgetExceeded.
  Reservation reserve(int layer, int64_t bytes, int64_t returning = 0);
  // Nothing where the bytes do not fit.
  std::optional<Reservation> try_reserve(int layer, int64_t bytes, int64_t returning = 0);
  // Whatever budgets say: there is that much less room afterwards, and none where more is held than they allow.
  Reservation overdraw(int layer, int64_t bytes);
  // One block. Throws kBudgetExceeded or kOutOfMemory.
  Block take(int layer, BlockKind kind, int64_t bytes, BlockPlace place = BlockPlace::kEngine);

  // What is left under a budget, negative where it is overdrawn; of what can be counted where there is none.
  int64_t room() const;
  int64_t room(int layer) const;
  // What reservations have lent.
  int64_t lent() const;
  int64_t lent(int layer) const;

  int64_t budget() const { return budget_; }
  int64_t bytes() const;
  int64_t peak_bytes() const;
  Usage usage(int layer, BlockKind kind) const;

 private:
  friend class Block;
  struct Layer {
    int64_t budget = 0;
    int64_t bytes = 0;  // reserved ones included
    int64_t lent = 0;
    Usage usage[3];  // by kind
  };
  void give_back(int layer, int64_t bytes);
  void lend(int layer, int64_t bytes);
  Reservation grant(int layer, int64_t bytes, int64_t returning);
  int64_t room_of(const Layer& layer) const;

  const std::shared_ptr<Arena> arenas_[2];  // by BlockPlace
  const int64_t budget_;
  mutable std::mutex mutex_;
  std::vector<Layer> layers_;
  int64_t bytes_ = 0;
  int64_t lent_ = 0;
  int64_t peak_bytes_ = 0;
};

}  // namespace kvasir
