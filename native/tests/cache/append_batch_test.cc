// Appends to many sequences in one call: the same as one for each, to the bit, from memory of any type and order; all
// or nothing.
#include <numeric>

#include "reference/half.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/errors.h"
#include "support/every_codec.h"
#include "support/failing_memory.h"

using kvasir::ElementType;
using kvasir::ErrorCode;
using kvasir::RowsView;
using support::EveryCodec;

namespace {

constexpr int kHeads = EveryCodec::kKvHeads, kDim = EveryCodec::kHeadDim, kRow = EveryCodec::kRow;

// Rows in a caller's memory, of some type and order; what lies between them is NaN.
class CallerRows {
 public:
  enum Order { kDense, kPadded, kHeadsFirst };

  CallerRows(const std::vector<float>& rows, int64_t tokens, ElementType type, Order order) {
    view_.type = type;
    if (order == kPadded) view_.head_stride = kDim + 8, view_.token_stride = kHeads * (kDim + 8) + 16;
    if (order == kHeadsFirst) view_.token_stride = kDim, view_.head_stride = tokens * kDim;
    const int64_t token_stride = order == kDense ? kRow : view_.token_stride;
    const int64_t head_stride = order == kDense ? kDim : view_.head_stride;
    const auto elements = static_cast<size_t>((tokens - 1) * token_stride + (kHeads - 1) * head_stride + kDim);
    floats_.assign(elements, std::numeric_limits<float>::quiet_NaN());
    halves_.assign(elements, 0x7FFF);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int h = 0; h < kHeads; ++h) {
        for (int c = 0; c < kDim; ++c) {
          const auto at = static_cast<size_t>(t * token_stride + h * head_stride + c);
          const float x = rows[static_cast<size_t>((t * kHeads + h) * kDim + c)];
          floats_[at] = x;
          uint32_t bits;
          std::memcpy(&bits, &x, 4);
          halves_[at] = type == ElementType::kFloat16 ? reference::half_nearest(x) : static_cast<uint16_t>(bits >> 16);
        }
      }
    }
    view_.data = type == ElementType::kFloat32 ? static_cast<const void*>(floats_.data()) : halves_.data();
  }

  const RowsView& view() const { return view_; }
  // From a token on, as a dense append of one sequence has them.
  void append(kvasir::Cache& cache, int64_t id, int layer, const CallerRows& values, int64_t first,
              int64_t tokens) const {
    const size_t at = static_cast<size_t>(first) * kRow;
    if (view_.type == ElementType::kFloat32) {
      cache.append(id, layer, floats_.data() + at, values.floats_.data() + at, tokens);
    } else if (view_.type == ElementType::kFloat16) {
      cache.append_f16(id, layer, halves_.data() + at, values.halves_.data() + at, tokens);
    } else {
      cache.append_bf16(id, layer, halves_.data() + at, values.halves_.data() + at, tokens);
    }
  }

 private:
  RowsView view_;
  std::vector<float> floats_;
  std::vector<uint16_t> halves_;
};

std::vector<std::vector<uint8_t>> images(kvasir::Cache& cache, const std::vector<int64_t>& ids) {
  std::vector<std::vector<uint8_t>> all;
  for (const int64_t id : ids) all.push_back(support::image_of(cache, id));
  return all;
}

struct Batch {
  std::vector<int64_t> ids, counts;
  int64_t tokens() const { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }
  void append(kvasir::Cache& cache, int layer, const RowsView& keys, const RowsView& values) const {
    cache.append_rows(layer, ids.data(), counts.data(), static_cast<int>(ids.size()), keys, values);
  }
};

}  // namespace

TEST_CASE("append batch: random ragged batches are one append each, to the bit, with every codec on every backend") {
  support::Random random(support::seed() + 71);
  const std::vector<std::string> backends = support::backend_names();
  const int rounds = std::max(support::repeat(6), static_cast<int>(backends.size()));
  for (const std::string& codec : EveryCodec::names()) {
    for (int round = 0; round < rounds; ++round) {
      const support::ConfigPointer config = EveryCodec::config(codec);
      config->set_backend(backends[static_cast<size_t>(round) % backends.size()].c_str());
      const support::CachePointer together(kvasir::Cache::create(*config)), alone(kvasir::Cache::create(*config));
      const int most = 1 + random.below(8);
      std::vector<int64_t> ids, twins;
      for (int i = 0; i < most; ++i) {
        ids.push_back(together->new_sequence());
        twins.push_back(alone->new_sequence());
      }
      for (int step = 0; step < 12; ++step) {
        // Some of them, in any order; forks among them share blocks.
        if (random.chance(0.2)) {
          const auto of = static_cast<size_t>(random.below(static_cast<int>(ids.size())));
          ids.push_back(together->fork(ids[of]));
          twins.push_back(alone->fork(twins[of]));
        }
        std::vector<size_t> order(ids.size());
        std::iota(order.begin(), order.end(), size_t{0});
        for (size_t i = order.size(); i > 1; --i) {
          std::swap(order[i - 1], order[static_cast<size_t>(random.below(static_cast<int>(i)))]);
        }
        order.resize(1 + static_cast<size_t>(random.below(static_cast<int>(order.size()))));
        Batch batch;
        for (const size_t i : order) {
          batch.ids.push_back(ids[i]);
          batch.counts.push_back(random.chance(0.5) ? random.below(3) : random.below(200));
        }
        if (batch.tokens() == 0) batch.counts[0] = 1;
        const int layer = random.below(EveryCodec::kLayers);
        const auto type = static_cast<ElementType>(random.below(3));
        const auto of_keys = support::make_half_rows(support::Profile::kOutliers, random.next(), batch.tokens(), kRow);
        const auto of_values = support::make_half_rows(support::Profile::kNormal, random.next(), batch.tokens(), kRow);
        const auto keys_order = static_cast<CallerRows::Order>(random.below(3));
        const auto values_order = static_cast<CallerRows::Order>(random.below(3));
        batch.append(*together, layer, CallerRows(of_keys, batch.tokens(), type, keys_order).view(),
                     CallerRows(of_values, batch.tokens(), type, values_order).view());
        const CallerRows keys(of_keys, batch.tokens(), type, CallerRows::kDense);
        const CallerRows values(of_values, batch.tokens(), type, CallerRows::kDense);
        int64_t first = 0;
        for (size_t i = 0; i < order.size(); ++i) {
          if (batch.counts[i] > 0) keys.append(*alone, twins[order[i]], layer, values, first, batch.counts[i]);
          first += batch.counts[i];
        }
        REQUIRE_MESSAGE(images(*together, ids) == images(*alone, twins), codec, ", round ", round, ", step ", step);
        REQUIRE(support::stats_of(*together)->bytes() == support::stats_of(*alone)->bytes());
      }
    }
  }
}

TEST_CASE("append batch: a budget refuses all of it or nothing, to the byte") {
  for (const std::string& codec : EveryCodec::names()) {
    // What the batch needs, at its fullest moment.
    const Batch batch = {{1, 2, 3}, {150, 1, 300}};
    const auto rows = support::half_rows(support::Profile::kNormal, 9, 451, kRow);
    const auto append = [&](kvasir::Cache& cache) { batch.append(cache, 0, {rows.data()}, {rows.data()}); };
    const auto make = [&](int64_t budget) {
      auto cache = EveryCodec::cache(codec, budget);
      for (const int64_t id : batch.ids) REQUIRE(cache->new_sequence() == id);
      cache->append(2, 0, rows.data(), rows.data(), 30);
      return cache;
    };
    const auto free = make(0);
    append(*free);
    const int64_t needed = support::stats_of(*free)->peak_bytes();
    append(*make(needed));
    const auto cache = make(needed * 3 / 5);
    const auto before = images(*cache, batch.ids);
    const int64_t bytes = support::stats_of(*cache)->bytes();
    if (codec == "progressive") {  // pages of the batch itself give up bits for one another
      append(*cache);
      CHECK(support::stats_of(*cache)->bytes() <= needed * 3 / 5);
      CHECK(support::stats_of(*cache)->code_bits(0, kvasir::Side::kKeys) < 16);
      continue;
    }
    support::error_of(ErrorCode::kBudgetExceeded, [&] { append(*cache); });
    CHECK(images(*cache, batch.ids) == before);
    CHECK(support::stats_of(*cache)->bytes() == bytes);
  }
}

TEST_CASE("append batch: one bad row, one unknown sequence or one listed twice, and nothing has changed") {
  const auto cache = EveryCodec::cache("uniform");
  const int64_t a = cache->new_sequence(), b = cache->new_sequence();
  auto rows = support::make_half_rows(support::Profile::kNormal, 9, 40, kRow);
  cache->append(a, 0, rows.data(), rows.data(), 5);
  const auto before = images(*cache, {a, b});
  const auto refused = [&](ErrorCode code, const Batch& batch) {
    support::error_of(code, [&] { batch.append(*cache, 0, {rows.data()}, {rows.data()}); });
    CHECK(images(*cache, {a, b}) == before);
  };
  refused(ErrorCode::kInvalidArgument, {{a, a}, {1, 2}});
  refused(ErrorCode::kInvalidArgument, {{a, b}, {0, 0}});
  refused(ErrorCode::kInvalidArgument, {{a, b}, {1, -1}});
  refused(ErrorCode::kInvalidArgument, {{a, b}, {1, INT64_MAX}});
  refused(ErrorCode::kUnknownSequence, {{a, b + 1}, {1, 1}});
  refused(ErrorCode::kUnknownSequence, {{a, b + 1}, {1, 0}});
  rows[20 * kRow + 3] = std::numeric_limits<float>::infinity();
  refused(ErrorCode::kNotFinite, {{a, b}, {10, 30}});
  const int64_t ids[] = {a}, counts[] = {1};
  const RowsView good = {rows.data()};
  const auto call = [&](int layer, const int64_t* list, const int64_t* tokens, int count, const RowsView& keys) {
    support::error_of(ErrorCode::kInvalidArgument, [&] { cache->append_rows(layer, list, tokens, count, keys, good); });
  };
  call(0, ids, counts, 0, good);
  call(2, ids, counts, 1, good);
  call(0, nullptr, counts, 1, good);
  call(0, ids, nullptr, 1, good);
  call(0, ids, counts, 1, {nullptr});
  call(0, ids, counts, 1, {rows.data(), static_cast<ElementType>(7)});
  call(0, ids, counts, 1, {rows.data(), ElementType::kFloat32, -1, kDim});
  call(0, ids, counts, 1, {rows.data(), ElementType::kFloat32, kRow, 1});
  CHECK(images(*cache, {a, b}) == before);
}

TEST_CASE("append batch: memory that runs out at any allocation leaves every sequence as it was") {
  const support::ThreadsGuard threads(2);
  for (const std::string& codec : EveryCodec::names()) {
    const auto cache = EveryCodec::cache(codec);
    const Batch batch = {{cache->new_sequence(), cache->new_sequence(), cache->new_sequence()}, {140, 2, 300}};
    const auto rows = support::half_rows(support::Profile::kNormal, 9, 600, kRow);
    cache->append(batch.ids[0], 0, rows.data(), rows.data(), 30);
    const int64_t fork = cache->fork(batch.ids[0]);
    const auto before = images(*cache, batch.ids);
    const int64_t bytes = support::stats_of(*cache)->bytes();
    bool done = false;
    int failures = 0;
    for (int nth = 1; !done && nth < 3000; nth += nth < 40 ? 1 : 7) {
      try {
        const support::FailingMemory memory(nth);
        batch.append(*cache, 0, {rows.data()}, {rows.data()});
        done = true;
      } catch (const std::bad_alloc&) {
        ++failures;
      } catch (const kvasir::Error& error) {
        REQUIRE(error.code() == ErrorCode::kOutOfMemory);
        ++failures;
      }
      if (done) break;
      REQUIRE_MESSAGE(images(*cache, batch.ids) == before, codec, ", allocation ", nth);
      REQUIRE(support::stats_of(*cache)->bytes() == bytes);
    }
    CHECK(done);
    CHECK(failures > 10);
    CHECK(cache->length(batch.ids[0], 0) == 170);
    CHECK(cache->length(fork, 0) == 30);
  }
}
