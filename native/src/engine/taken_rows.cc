#include "engine/taken_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>

#include "base/checks.h"
#include "base/half.h"
#include "base/thread_pool.h"

namespace kvasir {
namespace {

constexpr size_t kPerTask = size_t{1} << 18;
constexpr size_t kBlock = 1024;  // elements that are read at once: their copy stays in the nearest cache

float element_at(const void* elements, ElementType type, size_t index) {
  if (type == ElementType::kFloat32) return static_cast<const float*>(elements)[index];
  const uint16_t bits = static_cast<const uint16_t*>(elements)[index];
  return type == ElementType::kFloat16 ? half_to_float(bits) : bfloat_to_float(bits);
}

// The first element that a layer cannot store.
class FirstRefused {
 public:
  void report(size_t index, float value) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (index >= index_) return;
    index_ = index;
    value_ = value;
  }
  explicit operator bool() const { return index_ != std::numeric_limits<size_t>::max(); }
  size_t index() const { return index_; }
  float value() const { return value_; }

 private:
  std::mutex mutex_;
  size_t index_ = std::numeric_limits<size_t>::max();
  float value_ = 0;
};

// Elements first .. first + count - 1, counted token by token and head by head.
void copy_elements(const LayerPlan& plan, const RowsView& rows, bool dense, size_t first, size_t count, uint8_t* out) {
  const size_t bytes = element_bytes(rows.type);
  if (dense) {
    std::memcpy(out, static_cast<const uint8_t*>(rows.data) + first * bytes, count * bytes);
    return;
  }
  const auto width = static_cast<size_t>(plan.attention.head_dim);
  for (size_t done = 0; done < count;) {
    const auto row = static_cast<int64_t>((first + done) / width);
    const size_t channel = (first + done) % width, some = std::min(count - done, width - channel);
    const void* from = row_at(rows, row / plan.attention.kv_heads, row % plan.attention.kv_heads);
    std::memcpy(out + done * bytes, static_cast<const uint8_t*>(from) + channel * bytes, some * bytes);
    done += some;
  }
}

}  // namespace

struct TakenRows::Spare {
  static constexpr size_t kMostSpare = size_t{32} << 20;
  std::mutex mutex;
  AlignedArray<uint16_t> halves;
  size_t capacity = 0;

  static Spare& shared() {
    static Spare* const spare = new Spare;  // never destroyed: appends may end after main
    return *spare;
  }
};

AlignedArray<uint16_t> TakenRows::reuse(size_t halves, size_t* capacity) {
  Spare& spare = Spare::shared();
  {
    std::lock_guard<std::mutex> lock(spare.mutex);
    if (spare.capacity >= halves) {
      *capacity = std::exchange(spare.capacity, 0);
      return std::move(spare.halves);
    }
  }
  *capacity = halves;
  return make_aligned<uint16_t>(halves);
}

TakenRows::~TakenRows() {
  if (capacity_ * sizeof(uint16_t) > Spare::kMostSpare) return;
  Spare& spare = Spare::shared();
  std::lock_guard<std::mutex> lock(spare.mutex);
  if (capacity_ <= spare.capacity) return;
  spare.halves = std::move(halves_);
  spare.capacity = capacity_;
}

TakenRows::TakenRows(const LayerPlan& plan, const TokenRows& rows)
    : elements_(static_cast<size_t>(rows.tokens * plan.elements_per_token() / 2)),
      halves_(reuse(2 * elements_, &capacity_)) {
  for (const Side side : {Side::kKeys, Side::kValues}) {
    take(plan, side, rows.sides[static_cast<int>(side)], rows.tokens);
  }
}

void TakenRows::take(const LayerPlan& plan, Side side, const RowsView& rows, int64_t tokens) {
  const ElementType type = rows.type;
  const bool dense = is_dense(rows, tokens, plan.attention.kv_heads, plan.attention.head_dim);
  const RowKernels& kernels = *plan.attention.rows;
  const size_t row = side == Side::kKeys ? plan.key_scaling.size() : 0;
  uint16_t* out = halves_.get() + (side == Side::kValues ? elements_ : 0);
  FirstRefused refused;
  const auto take_block = [&](size_t first, size_t count) {
    alignas(64) unsigned char copy[kBlock * sizeof(float)];
    copy_elements(plan, rows, dense, first, count, copy);
    if (row == 0 && kernels.check(copy, type, count)) return kernels.to_half(copy, type, count, out + first);
    alignas(64) float scaled[kBlock];
    for (size_t i = 0; i < count; ++i) {
      const float value = element_at(copy, type, i);
      scaled[i] = row == 0 ? value : value / plan.key_scaling[(first + i) % row];
    }
    if (kernels.check(copy, type, count) && kernels.check(scaled, ElementType::kFloat32, count)) {
      return kernels.to_half(scaled, ElementType::kFloat32, count, out + first);
    }
    for (size_t i = 0; i < count; ++i) {
      const float value = element_at(copy, type, i);
      const bool good = std::fabs(value) <= kMaxMagnitude && std::fabs(scaled[i]) <= kMaxMagnitude;
      if (!good) return refused.report(first + i, value);
    }
  };
  const auto tasks = static_cast<int>((elements_ + kPerTask - 1) / kPerTask);
  ThreadPool::current().run(tasks, [&](int task) {
    const size_t end = std::min(elements_, (static_cast<size_t>(task) + 1) * kPerTask);
    for (size_t first = static_cast<size_t>(task) * kPerTask; first < end; first += kBlock) {
      take_block(first, std::min(kBlock, end - first));
    }
  });
  if (!refused) return;
  if (plan.attention.latent()) {
    const size_t half = elements_ / static_cast<size_t>(tokens), token = refused.index() / half;
    const size_t channel = (side == Side::kValues ? half : 0) + refused.index() % half;
    throw not_finite("keys", plan.index, 1, plan.attention.row_dim, static_cast<int64_t>(token * 2 * half + channel),
                     refused.value());
  }
  throw not_finite(side == Side::kKeys ? "keys" : "values", plan.index, plan.attention.kv_heads,
                   plan.attention.head_dim, static_cast<int64_t>(refused.index()), refused.value());
}

}  // namespace kvasir
