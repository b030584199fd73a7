#include "cache/memory.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/checked.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

void require(BudgetOwner owner, int layer, int64_t room, int64_t freeable, int64_t lent, int64_t needed) {
  if (needed <= 0 || needed <= room + freeable - lent) return;
  const std::string held =
      room < 0 ? " budget is overdrawn by " + std::to_string(-room) : " budget has room for " + std::to_string(room);
  const std::string loans = lent > 0 ? ", " + std::to_string(lent) + " of that for what was reserved" : "";
  const std::string text = held + " bytes, and pages shrunk to their floor would free " + std::to_string(freeable) +
                           loans + "; " + std::to_string(needed) + " are needed";
  throw budget_error(owner, layer, text, needed, std::max<int64_t>(0, room + freeable - lent));
}

// Shapes of pages to seal: the oldest `narrow` one level below the others.
struct NewPages {
  const std::vector<PageShape>& shapes;
  int64_t count;
  size_t level;
  int64_t narrow = 0;

  bool at_floor() const { return level + 1 == shapes.size(); }
  int width() const { return count == 0 ? 0 : shapes[level].width; }
  int64_t bytes() const { return bytes(0, count); }
  // Of `some` of them, from the one with that number on.
  int64_t bytes(int64_t first, int64_t some) const {
    const auto wide = static_cast<int64_t>(shapes[level].bytes());
    const int64_t all = checked_multiply(some, wide, "bytes of the pages to seal");
    const int64_t narrower = std::clamp<int64_t>(narrow - first, 0, some);
    return narrower == 0 ? all : all - narrower * (wide - static_cast<int64_t>(shapes[level + 1].bytes()));
  }
  // Narrows the next `pages` of them.
  void give_up(int64_t pages) {
    narrow += pages;
    if (narrow < count) return;
    ++level;
    narrow = 0;
  }
  std::vector<const PageShape*> list() const {
    std::vector<const PageShape*> list(static_cast<size_t>(count), &shapes[level]);
    std::fill(list.begin(), list.begin() + narrow, &shapes[level + (narrow > 0)]);
    return list;
  }
};

// What needs take of a promise, of what it has left and of what it has lent.
struct Draw {
  Pool::Reservation* promised;
  int64_t bytes;      // of what is left
  int64_t loan;       // of all that is taken: what pages at their floor would not take
  int64_t paid_back;  // of its loans, by bytes that are not drawn
};

// own: all that is needed; least: with pages at their floor.
Draw draw_of(Pool::Reservation& promised, int64_t own, int64_t least) {
  const int64_t left = promised.left();
  const int64_t taken = std::min(own, left + promised.lent());
  const int64_t bytes = std::min(left, taken);
  return {&promised, bytes, std::max<int64_t>(0, taken - least), taken - bytes};
}

// What all needs of a layer take, with such pages.
struct Taking {
  std::vector<std::optional<Draw>> draws;  // by needs
  int64_t beyond;                          // what is not drawn
  int64_t paid_back = 0;

  Taking(const std::vector<Memory::Needs>& all, const NewPages& pages) : beyond(pages.bytes()) {
    const int64_t floor = static_cast<int64_t>(pages.shapes.back().bytes());
    int64_t first = 0;  // of the pages of these needs
    for (const Memory::Needs& needs : all) {
      beyond = checked_add(beyond, needs.bytes, "bytes to append");
      const int64_t own = needs.bytes + pages.bytes(first, needs.pages);
      first += needs.pages;
      draws.emplace_back();
      if (!needs.promised) continue;
      draws.back() = draw_of(*needs.promised, own, needs.bytes + needs.pages * floor);
      beyond -= draws.back()->bytes;
      paid_back += draws.back()->paid_back;
    }
  }

  Memory::Room room(Pool::Reservation reserved, const NewPages& pages) const {
    std::vector<int64_t> loans;
    for (const std::optional<Draw>& draw : draws) {
      if (draw) reserved.draw(*draw->promised, draw->bytes, draw->paid_back);
      loans.push_back(draw ? draw->loan : 0);
    }
    return {std::move(reserved), pages.list(), std::move(loans)};
  }
};

}  // namespace

Page::Page(Memory& memory, int layer, Block block, const PageShape& shape, const uint32_t* sizes)
    : memory_(memory), layer_(layer), block_(std::move(block)), age_(memory.next_age_++) {
  view_.data = block_.data();
  view_.shape = &shape;
  if (shape.varies()) {
    offsets_.push_back(static_cast<uint32_t>(shape.table_bytes()));
    for (int i = 0; i < shape.parts(); ++i) offsets_.push_back(offsets_[i] + sizes[i]);
    view_.offsets = offsets_.data();
  }
  if (!memory.plans_[layer].can_shrink()) return;
  Ranks one;
  one.emplace(age_, this);
  node_ = one.extract(age_);
}

Page::~Page() { memory_.forget(*this); }

Memory::Memory(const std::vector<LayerPlan>& plans, Engine& engine, int64_t budget, std::vector<int64_t> layer_budgets,
               ShrinkPolicy policy)
    : plans_(plans),
      engine_(engine),
      pool_(std::make_shared<Pool>(engine.arena(), budget, std::move(layer_budgets))),
      policy_(policy) {
  for (const LayerPlan& plan : plans) {
    layers_.push_back(std::make_unique<Layer>());
    layers_.back()->ranks.resize(plan.shapes.size());
    can_shrink_ |= plan.can_shrink();
  }
}

void Memory::enlist(const std::vector<std::shared_ptr<Page>>& pages, Pool::Reservation* promised, int64_t loan) {
  if (pages.empty() || !plans_[pages.front()->layer_].can_shrink()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& page : pages) {
    if (page->enlisted_) continue;
    const auto level = static_cast<size_t>(page->view_.shape - plans_[page->layer_].shapes.data());
    Layer& layer = *layers_[page->layer_];
    layer.ranks[level].insert(std::move(page->node_));
    layer.sealed += 1;
    page->enlisted_ = true;
  }
  if (loan > 0) promised->lend(loan);
}

// What the page could have given up becomes room at once, or loans would miss it in between.
void Memory::forget(Page& page) {
  if (!page.enlisted_) return;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto level = static_cast<size_t>(page.view_.shape - plans_[page.layer_].shapes.data());
  layers_[page.layer_]->ranks[level].erase(page.age_);
  page.block_.reset();
}

std::shared_lock<FairSharedMutex> Memory::read(int layer) {
  if (!plans_[layer].can_shrink()) return {};
  return std::shared_lock<FairSharedMutex>(layers_[layer]->pages);
}

Block Memory::take(int layer, BlockKind kind, int64_t bytes, BlockPlace place, Pool::Reservation* promised) {
  return make_room(layer, {{bytes, 0, 0, promised}}).bytes.take(kind, bytes, place);
}

Memory::Room Memory::make_room(int layer, const std::vector<Needs>& all) {
  const LayerPlan& plan = plans_[layer];
  int64_t pages = 0, returning = 0;
  for (const Needs& needs : all) {
    pages += needs.pages;
    returning += needs.returning;
  }
  NewPages fresh = {plan.shapes, pages, 0};
  if (!can_shrink_) {
    const Taking taking(all, fresh);
    return taking.room(pool_->reserve(layer, taking.beyond, returning), fresh);
  }

  std::lock_guard<std::mutex> lock(mutex_);
  const Taking floor(all, {plan.shapes, pages, plan.shapes.size() - 1});
  const int64_t least = floor.beyond - floor.paid_back - returning;
  require_layer_floor(layer, least);
  require_cache_floor(layer, least);
  if (policy_ == ShrinkPolicy::kLayer) {
    // Pages of a layer have one width.
    for (size_t level = 0; level < plan.shapes.size(); ++level) {
      if (!layers_[layer]->ranks[level].empty()) fresh.level = level;
    }
  }
  for (;;) {
    if (pages > 0 || policy_ == ShrinkPolicy::kLayer) note_step(layer, fresh.level);
    const Taking taking(all, fresh);
    const int64_t needed = taking.beyond;
    const bool narrower = pages > 0 && !fresh.at_floor();
    // New pages have nothing to give up before they are there.
    const bool too_wide = narrower && !leaves_loans(layer, needed - taking.paid_back - returning);
    if (!too_wide) {
      if (auto reserved = pool_->try_reserve(layer, needed, returning)) return taking.room(std::move(*reserved), fresh);
    }
    const Candidates oldest = too_wide ? Candidates() : most_bits(layer, needed - returning <= pool_->room(layer));
    if (oldest.layer >= 0 && oldest.width >= fresh.width()) {
      shrink_some(oldest);
      if (policy_ == ShrinkPolicy::kLayer && oldest.layer == layer) {
        fresh.level = std::max(fresh.level, static_cast<size_t>(oldest.level) + 1);
      }
    } else if (narrower) {
      fresh.give_up(policy_ == ShrinkPolicy::kLayer ? pages : 1);
    } else if (needed - returning <= taking.paid_back) {
      // What was lent is there, but where others overdrew the budget. That is not the promise's fault.
      return taking.room(pool_->overdraw(layer, needed), fresh);
    } else {
      // Someone else took what was there when the floor was checked.
      return taking.room(pool_->reserve(layer, needed, returning), fresh);
    }
  }
}

std::vector<Pool::Reservation> Memory::reserve_least(const std::vector<std::pair<int, Needs>>& all) {
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  if (can_shrink_) {
    lock.lock();
    require_floors(all);
  }
  std::vector<Pool::Reservation> reserved;
  for (const auto& [layer, needs] : all) {
    const int64_t bytes = least(layer, needs);
    const int64_t more = bytes - needs.returning;
    while (more > std::max<int64_t>(0, std::min(pool_->room(), pool_->room(layer)))) {
      const Candidates oldest = most_bits(layer, more <= pool_->room(layer));
      if (oldest.layer < 0) break;
      shrink_some(oldest);
    }
    reserved.push_back(pool_->reserve(layer, bytes, needs.returning));
  }
  return reserved;
}

std::optional<Pool::Reservation> Memory::try_take(int layer, int64_t bytes) {
  if (!can_shrink_) return pool_->try_reserve(layer, bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  return leaves_loans(layer, bytes) ? pool_->try_reserve(layer, bytes) : std::nullopt;
}

void Memory::check_room(const std::vector<std::pair<int, Needs>>& all) {
  if (!can_shrink_) return;
  std::lock_guard<std::mutex> lock(mutex_);
  require_floors(all);
}

// With pages as narrow as they get.
int64_t Memory::least(int layer, const Needs& needs) const {
  const std::vector<PageShape>& shapes = plans_[layer].shapes;
  const NewPages floor = {shapes, needs.pages, shapes.size() - 1};
  const int64_t bytes = checked_add(needs.bytes, floor.bytes(), "bytes of a layer");
  const int64_t promised = needs.promised ? needs.promised->left() + needs.promised->lent() : 0;
  return std::max<int64_t>(0, bytes - promised);
}

void Memory::require_floors(const std::vector<std::pair<int, Needs>>& all) const {
  std::vector<int64_t> needed(plans_.size());
  for (const auto& [layer, needs] : all) {
    needed[layer] = checked_add(needed[layer], least(layer, needs), "bytes of a layer") - needs.returning;
  }
  int64_t total = 0;
  for (size_t layer = 0; layer < needed.size(); ++layer) {
    total = checked_add(total, needed[layer], "bytes of all layers");
    require_layer_floor(static_cast<int>(layer), needed[layer]);
  }
  require_cache_floor(all.size() == 1 ? all.front().first : kAllLayers, total);
}

// Bytes that the layer's pages would give up down to the floor.
int64_t Memory::freeable(int layer) const {
  const std::vector<PageShape>& shapes = plans_[layer].shapes;
  int64_t bytes = 0;
  for (size_t level = 0; level < shapes.size(); ++level) {
    const auto each = static_cast<int64_t>(shapes[level].bytes() - shapes.back().bytes());
    bytes += each * static_cast<int64_t>(layers_[layer]->ranks[level].size());
  }
  return bytes;
}

int64_t Memory::freeable() const {
  int64_t bytes = 0;
  for (size_t layer = 0; layer < layers_.size(); ++layer) bytes += freeable(static_cast<int>(layer));
  return bytes;
}

// Whether what has been lent can be had again once bytes have gone to somebody.
bool Memory::leaves_loans(int layer, int64_t bytes) const {
  if (bytes <= 0 || pool_->lent() == 0) return true;
  if (bytes > pool_->room(layer) + freeable(layer) - pool_->lent(layer)) return false;
  return bytes <= pool_->room() + freeable() - pool_->lent();
}

void Memory::require_layer_floor(int layer, int64_t bytes) const {
  require(BudgetOwner::kLayer, layer, pool_->room(layer), freeable(layer), pool_->lent(layer), bytes);
}

void Memory::require_cache_floor(int layer, int64_t bytes) const {
  require(BudgetOwner::kCache, layer, pool_->room(), freeable(), pool_->lent(), bytes);
}

Memory::Candidates Memory::most_bits(int layer, bool whole_cache) const {
  Candidates best;
  int64_t age = 0;
  const auto consider = [&](int index) {
    for (size_t level = 0; level + 1 < layers_[index]->ranks.size(); ++level) {
      const Page::Ranks& pages = layers_[index]->ranks[level];
      if (pages.empty()) continue;
      const int width = plans_[index].shapes[level].width;
      if (width < best.width || (width == best.width && pages.begin()->first > age)) continue;
      best = {index, static_cast<int>(level), width};
      age = pages.begin()->first;
    }
  };
  if (!whole_cache) {
    consider(layer);
    return best;
  }
  for (size_t i = 0; i < layers_.size(); ++i) consider(static_cast<int>(i));
  if (policy_ == ShrinkPolicy::kLayer && best.layer != layer) {
    // The layer that asks goes first, among equals.
    const Candidates all = best;
    best = {};
    consider(layer);
    if (best.width < all.width) best = all;
  }
  return best;
}

void Memory::shrink_some(const Candidates& at) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  Layer& layer = *layers_[at.layer];
  const std::vector<PageShape>& shapes = plans_[at.layer].shapes;
  const auto level = static_cast<size_t>(at.level);
  Page::Ranks& from = layer.ranks[level];
  std::vector<Page*> pages;
  for (const auto& [age, page] : from) {
    pages.push_back(page);
    if (policy_ == ShrinkPolicy::kOldest) break;
  }
  {
    std::vector<ShrinkingPage> shrinking;
    for (Page* page : pages) {
      uint32_t* offsets = page->offsets_.empty() ? nullptr : page->offsets_.data();
      shrinking.push_back({page->block_.data(), &shapes[level], &shapes[level + 1], offsets});
    }
    const std::unique_lock<FairSharedMutex> lock(layer.pages);
    engine_.shrink(plans_[at.layer], shrinking);
    for (Page* page : pages) {
      const size_t bytes = page->offsets_.empty() ? shapes[level + 1].bytes() : page->offsets_.back();
      page->block_.shrink(static_cast<int64_t>(bytes));
      page->view_.shape = &shapes[level + 1];
    }
  }
  for (const Page* page : pages) layer.ranks[level + 1].insert(from.extract(page->age_));
  layer.shrinks.count += static_cast<int64_t>(pages.size());
  layer.shrinks.freed_bytes += static_cast<int64_t>((shapes[level].bytes() - shapes[level + 1].bytes()) * pages.size());
  layer.shrinks.nanoseconds += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

// The next pages of the layer are at that level, or below.
void Memory::note_step(int layer, size_t level) {
  const PageShape& shape = plans_[layer].shapes[level];
  const int bits = std::max(shape.formats[0].bits, shape.formats[1].bits);
  std::vector<Step>& steps = layers_[layer]->steps;
  if (level > 0 && (steps.empty() || bits < steps.back().bits)) steps.push_back({bits, layers_[layer]->sealed});
}

Memory::Shrinks Memory::shrinks(int layer) {
  std::lock_guard<std::mutex> lock(mutex_);
  return layers_[layer]->shrinks;
}

std::vector<Memory::Step> Memory::steps(int layer) {
  std::lock_guard<std::mutex> lock(mutex_);
  return layers_[layer]->steps;
}

}  // namespace kvasir
