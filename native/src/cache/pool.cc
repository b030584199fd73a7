#include "cache/pool.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kvasir/error.h"

namespace kvasir {
namespace {

// Whatever the budget. What no budget stops can be counted beyond them.
constexpr int64_t kMostBytes = INT64_MAX / 2;

int64_t room_under(int64_t budget, int64_t held) {
  return (budget == 0 ? kMostBytes : std::min(budget, kMostBytes)) - held;
}

bool fits(int64_t budget, int64_t held, int64_t needed) { return needed <= 0 || needed <= room_under(budget, held); }

void check_budget(BudgetOwner owner, int layer, int64_t budget, int64_t held, int64_t needed) {
  if (fits(budget, held, needed)) return;
  const std::string limit = budget == 0 ? " bytes are counted up to " + std::to_string(kMostBytes)
                                        : " budget is " + std::to_string(budget) + " bytes";
  const std::string text =
      limit + ", " + std::to_string(held) + " are held, " + std::to_string(needed) + " more are needed";
  throw budget_error(owner, layer, text, needed, std::max<int64_t>(0, room_under(budget, held)));
}

}  // namespace

Error budget_error(BudgetOwner owner, int layer, const std::string& text, int64_t needed, int64_t left) {
  const bool own = owner == BudgetOwner::kLayer;
  return Error(ErrorCode::kBudgetExceeded, (own ? "layer " + std::to_string(layer) + "'s" : "the cache's") + text,
               "layer=" + std::to_string(layer) + " needed=" + std::to_string(needed) +
                   " left=" + std::to_string(left) + " own=" + std::to_string(own));
}

Block& Block::operator=(Block&& other) noexcept {
  if (this != &other) {
    reset();
    pool_ = std::move(other.pool_);
    arena_ = other.arena_;
    data_ = std::exchange(other.data_, nullptr);
    taken_ = other.taken_;
    bytes_ = std::exchange(other.bytes_, 0);
    shrinkable_ = other.shrinkable_;
    layer_ = other.layer_;
    kind_ = other.kind_;
  }
  return *this;
}

void Block::reset() {
  if (!pool_) return;
  arena_->give_back(data_, static_cast<size_t>(taken_), shrinkable_);
  data_ = nullptr;
  {
    std::lock_guard<std::mutex> lock(pool_->mutex_);
    Pool::Usage& usage = pool_->layers_[layer_].usage[static_cast<int>(kind_)];
    usage.bytes -= bytes_;
    usage.blocks -= 1;
    pool_->give_back(layer_, bytes_);
  }
  pool_.reset();
  bytes_ = 0;
}

void Block::shrink(int64_t bytes) {
  arena_->shrink(data_, static_cast<size_t>(taken_), static_cast<size_t>(bytes));
  std::lock_guard<std::mutex> lock(pool_->mutex_);
  pool_->layers_[layer_].usage[static_cast<int>(kind_)].bytes -= bytes_ - bytes;
  pool_->give_back(layer_, bytes_ - bytes);
  bytes_ = bytes;
}

Pool::Pool(std::shared_ptr<Arena> arena, int64_t budget, std::vector<int64_t> layer_budgets)
    : arenas_{std::move(arena), host_arena()}, budget_(budget), layers_(layer_budgets.size()) {
  for (size_t i = 0; i < layers_.size(); ++i) layers_[i].budget = layer_budgets[i];
}

Pool::Reservation Pool::reserve(int layer, int64_t bytes, int64_t returning) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Layer& owner = layers_[layer];
  check_budget(BudgetOwner::kCache, layer, budget_, bytes_, bytes - returning);
  check_budget(BudgetOwner::kLayer, layer, owner.budget, owner.bytes, bytes - returning);
  return grant(layer, bytes, returning);
}

std::optional<Pool::Reservation> Pool::try_reserve(int layer, int64_t bytes, int64_t returning) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Layer& owner = layers_[layer];
  if (!fits(budget_, bytes_, bytes - returning)) return std::nullopt;
  if (!fits(owner.budget, owner.bytes, bytes - returning)) return std::nullopt;
  return grant(layer, bytes, returning);
}

Pool::Reservation Pool::overdraw(int layer, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  return grant(layer, bytes, 0);
}

// With the mutex held and the budgets checked.
Pool::Reservation Pool::grant(int layer, int64_t bytes, int64_t returning) {
  layers_[layer].bytes += bytes;
  bytes_ += bytes;
  // What gives back as much as it takes is no new peak, whatever others are about to give back.
  if (bytes > returning) peak_bytes_ = std::max(peak_bytes_, bytes_ - returning);
  return {shared_from_this(), layer, bytes};
}

int64_t Pool::room_of(const Layer& layer) const { return room_under(layer.budget, layer.bytes); }

int64_t Pool::room() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return room_under(budget_, bytes_);
}

int64_t Pool::room(int layer) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return room_of(layers_[layer]);
}

Block Pool::take(int layer, BlockKind kind, int64_t bytes, BlockPlace place) {
  return reserve(layer, bytes).take(kind, bytes, place);
}

Pool::Reservation::~Reservation() {
  if (!pool_ || (left_ == 0 && lent_ == 0)) return;
  std::lock_guard<std::mutex> lock(pool_->mutex_);
  pool_->give_back(layer_, left_);
  pool_->lend(layer_, -lent_);
}

void Pool::Reservation::draw(Reservation& other, int64_t bytes, int64_t paid_back) {
  other.left_ -= bytes;
  left_ += bytes;
  if (paid_back > 0) other.lend(-paid_back);
}

void Pool::Reservation::lend(int64_t bytes) {
  std::lock_guard<std::mutex> lock(pool_->mutex_);
  pool_->lend(layer_, bytes);
  lent_ += bytes;
}

void Pool::Reservation::restore(int64_t left, int64_t lent) {
  std::lock_guard<std::mutex> lock(pool_->mutex_);
  pool_->give_back(layer_, left_ - left);
  pool_->lend(layer_, lent - lent_);
  left_ = left;
  lent_ = lent;
}

Block Pool::Reservation::take(BlockKind kind, int64_t bytes, BlockPlace place, bool shrinkable) {
  Block block;
  block.arena_ = pool_->arenas_[static_cast<int>(place)].get();
  block.data_ = block.arena_->take(static_cast<size_t>(bytes), shrinkable);
  block.taken_ = bytes;
  block.shrinkable_ = shrinkable;
  block.pool_ = pool_;
  block.layer_ = layer_;
  block.kind_ = kind;
  block.bytes_ = bytes;
  left_ -= bytes;
  std::lock_guard<std::mutex> lock(pool_->mutex_);
  Usage& usage = pool_->layers_[layer_].usage[static_cast<int>(kind)];
  usage.bytes += bytes;
  usage.blocks += 1;
  return block;
}

// With the mutex held.
void Pool::give_back(int layer, int64_t bytes) {
  layers_[layer].bytes -= bytes;
  bytes_ -= bytes;
}

// Likewise.
void Pool::lend(int layer, int64_t bytes) {
  layers_[layer].lent += bytes;
  lent_ += bytes;
}

int64_t Pool::lent() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return lent_;
}

int64_t Pool::lent(int layer) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return layers_[layer].lent;
}

int64_t Pool::bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return bytes_;
}

int64_t Pool::peak_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return peak_bytes_;
}

Pool::Usage Pool::usage(int layer, BlockKind kind) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return layers_[layer].usage[static_cast<int>(kind)];
}

}  // namespace kvasir
