// Guesses of which some are kept: the same as if those alone had been appended, to the bit.
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/errors.h"
#include "support/every_codec.h"
#include "support/failing_memory.h"
#include "support/saved.h"

using kvasir::ErrorCode;
using support::EveryCodec;

namespace {

constexpr int kRow = EveryCodec::kRow;

void append(kvasir::Cache& cache, int64_t id, const std::vector<float>& rows) {
  const auto tokens = static_cast<int64_t>(rows.size()) / kRow;
  for (int layer = 0; tokens > 0 && layer < EveryCodec::kLayers; ++layer) {
    cache.append(id, layer, rows.data(), rows.data(), tokens);
  }
}

std::vector<float> random_rows(support::Random& random, int tokens) {
  return support::make_half_rows(support::Profile::kOutliers, random.next(), tokens, kRow);
}

std::vector<int> some_of(support::Random& random, int guesses) {
  const double share = random.uniform();
  std::vector<int> kept;
  for (int i = 0; i < guesses; ++i) {
    if (random.chance(share)) kept.push_back(i);
  }
  return kept;
}

std::vector<float> rows_of(const std::vector<float>& rows, const std::vector<int>& kept) {
  std::vector<float> path;
  for (const int each : kept) path.insert(path.end(), rows.begin() + each * kRow, rows.begin() + (each + 1) * kRow);
  return path;
}

}  // namespace

TEST_CASE("guesses: what is kept is what plain appends give, with every codec, forks and all") {
  support::Random random(support::seed() + 91);
  for (const std::string& codec : EveryCodec::names()) {
    for (int round = 0; round < support::repeat(8); ++round) {
      const auto cache = EveryCodec::cache(codec), plain = EveryCodec::cache(codec);
      int64_t id = cache->new_sequence();
      const int64_t twin = plain->new_sequence();
      int64_t fork = 0;
      std::vector<uint8_t> seen_by_fork;
      const auto prompt = random_rows(random, random.chance(0.3) ? random.below(6) : random.below(300));
      append(*cache, id, prompt);
      append(*plain, twin, prompt);
      for (int step = 0; step < 8; ++step) {
        cache->guess(id);
        const auto guesses = random_rows(random, 1 + random.below(64));
        // In one call, or in several.
        const int first = random.below(static_cast<int>(guesses.size()) / kRow);
        append(*cache, id, std::vector<float>(guesses.begin(), guesses.begin() + first * kRow));
        if (fork == 0 && random.chance(0.3)) fork = cache->fork(id);
        append(*cache, id, std::vector<float>(guesses.begin() + first * kRow, guesses.end()));
        if (fork == 0 && random.chance(0.3)) fork = cache->fork(id);
        if (fork != 0 && seen_by_fork.empty()) seen_by_fork = support::image_of(*cache, fork);
        const auto kept = some_of(random, static_cast<int>(guesses.size()) / kRow);
        cache->keep(id, kept.data(), static_cast<int>(kept.size()));
        append(*plain, twin, rows_of(guesses, kept));
        REQUIRE_MESSAGE(support::image_of(*cache, id) == support::image_of(*plain, twin), codec, ", round ", round,
                        ", step ", step);
        if (fork != 0) REQUIRE(support::image_of(*cache, fork) == seen_by_fork);
      }
      if (fork != 0) cache->release(fork);
      CHECK(support::stats_of(*cache)->bytes() == support::stats_of(*plain)->bytes());
    }
  }
}

TEST_CASE("guesses: a page that has no room to be sealed is sealed by the next append that has") {
  const auto rows = support::half_rows(support::Profile::kNormal, 6, 200, kRow);
  const auto probe = EveryCodec::cache("uniform");
  append(*probe, probe->new_sequence(), {rows.begin(), rows.begin() + 150 * kRow});
  // All that the rows take, and nothing for pages beside blocks of another sequence.
  const auto cache = EveryCodec::cache("uniform", 2 * (1 + 11) * 16 * 2 * 2 * kRow + 100);
  const int64_t id = cache->new_sequence();
  append(*cache, id, {rows.begin(), rows.begin() + 140 * kRow});
  cache->guess(id);
  append(*cache, id, {rows.begin(), rows.begin() + 20 * kRow});
  const int64_t fork = cache->fork(id);  // holds the blocks, so that sealing gives none back
  std::vector<int> kept(20);
  for (int i = 0; i < 20; ++i) kept[static_cast<size_t>(i)] = i;
  cache->keep(id, kept.data(), 20);
  CHECK(cache->length(id, 0) == 160);
  CHECK(cache->page_count(id, 0) == 0);
  cache->release(fork);
  append(*cache, id, {rows.begin(), rows.begin() + kRow});
  CHECK(cache->length(id, 0) == 161);
  CHECK(cache->page_count(id, 0) == 1);
}

TEST_CASE("guesses: a cut that leaves some leaves them in all layers, of a step that broke off too") {
  support::Random random(support::seed() + 92);
  for (const std::string& codec : EveryCodec::names()) {
    const auto cache = EveryCodec::cache(codec), plain = EveryCodec::cache(codec);
    const int64_t id = cache->new_sequence(), twin = plain->new_sequence();
    const auto prompt = random_rows(random, 130), guesses = random_rows(random, 3);
    const auto first = [&](int tokens) { return std::vector<float>(guesses.begin(), guesses.begin() + tokens * kRow); };
    append(*cache, id, prompt);
    append(*plain, twin, prompt);
    cache->guess(id);
    cache->append(id, 0, guesses.data(), guesses.data(), 3);
    cache->truncate(id, 132);  // layer 1 has none yet
    cache->append(id, 1, guesses.data(), guesses.data(), 2);
    const int kept = 1;
    cache->keep(id, &kept, 1);
    append(*plain, twin, rows_of(first(2), {1}));
    CHECK_MESSAGE(support::image_of(*cache, id) == support::image_of(*plain, twin), codec);
    // Back to where guesses began: then there are none.
    cache->guess(id);
    append(*cache, id, guesses);
    cache->truncate(id, 131);
    support::error_of(ErrorCode::kInvalidArgument, [&] { cache->keep(id, nullptr, 0); });
    append(*cache, id, first(1));
    append(*plain, twin, first(1));
    CHECK_MESSAGE(support::image_of(*cache, id) == support::image_of(*plain, twin), codec);
  }
}

TEST_CASE("guesses: a layer without rows of its own guesses along, whatever is cut") {
  const auto config = EveryCodec::config("uniform");
  config->set_source(1, 0);
  const support::CachePointer cache(kvasir::Cache::create(*config));
  const auto rows = support::half_rows(support::Profile::kNormal, 8, 13, kRow);
  const int64_t id = cache->new_sequence(), twin = cache->new_sequence();
  cache->append(id, 0, rows.data(), rows.data(), 10);
  cache->guess(id);
  cache->append(id, 0, rows.data() + 10 * kRow, rows.data() + 10 * kRow, 3);
  cache->truncate(id, 1000);
  CHECK(cache->rollback(id) == 13);
  const int kept = 0;
  cache->keep(id, &kept, 1);
  const double bits = support::stats_of(*cache)->bits_per_element(kvasir::kAllLayers);
  std::vector<float> path(rows.begin(), rows.begin() + 11 * kRow);
  cache->append(twin, 0, path.data(), path.data(), 11);
  CHECK(support::stats_of(*cache)->bits_per_element(kvasir::kAllLayers) == doctest::Approx(bits));
  CHECK(support::image_of(*cache, id) == support::image_of(*cache, twin));
  CHECK(support::save(*cache, id).state == support::save(*cache, twin).state);
}

TEST_CASE("guesses: what makes no sense is refused, and changes nothing") {
  const auto cache = EveryCodec::cache("uniform");
  const auto rows = support::half_rows(support::Profile::kNormal, 6, 100, kRow);
  const int64_t id = cache->new_sequence();
  const auto refused = [&](const std::vector<int>& kept) {
    const auto before = support::image_of(*cache, id);
    support::error_of(ErrorCode::kInvalidArgument,
                      [&] { cache->keep(id, kept.data(), static_cast<int>(kept.size())); });
    CHECK(support::image_of(*cache, id) == before);
  };
  refused({0});  // nothing was guessed
  append(*cache, id, {rows.begin(), rows.begin() + 10 * kRow});
  cache->guess(id);
  append(*cache, id, {rows.begin(), rows.begin() + 5 * kRow});
  support::error_of(ErrorCode::kInvalidArgument, [&] { cache->guess(id); });
  refused({5});
  refused({-1});
  refused({2, 2});
  refused({3, 1});
  support::error_of(ErrorCode::kInvalidArgument, [&] { cache->keep(id, nullptr, 1); });
  support::error_of(ErrorCode::kInvalidArgument, [&] { cache->keep(id, nullptr, -1); });
  support::error_of(ErrorCode::kUnknownSequence, [&] { cache->keep(id + 1, nullptr, 0); });
  support::error_of(ErrorCode::kInvalidArgument, [&] { append(*cache, id, {rows.begin(), rows.begin() + 60 * kRow}); });
  cache->append(id, 0, rows.data(), rows.data(), 1);
  refused({0});  // layers are of different lengths
  support::error_of(ErrorCode::kInvalidArgument, [&] { cache->guess(id); });
  cache->truncate(id, 10);
  refused({});  // which ended it
}

TEST_CASE("guesses: memory that runs out leaves all of them there") {
  const auto cache = EveryCodec::cache("pattern");
  const auto rows = support::half_rows(support::Profile::kNormal, 6, 300, kRow);
  const int64_t id = cache->new_sequence();
  append(*cache, id, {rows.begin(), rows.begin() + 140 * kRow});
  cache->guess(id);
  append(*cache, id, {rows.begin(), rows.begin() + 60 * kRow});
  const int64_t fork = cache->fork(id);
  const auto before = support::image_of(*cache, id);
  const int kept[] = {3, 20, 50};
  int failures = 0;
  for (int nth = 1;; ++nth) {
    try {
      const support::FailingMemory memory(nth);
      cache->keep(id, kept, 3);
      break;
    } catch (const std::bad_alloc&) {
    } catch (const kvasir::Error& error) {
      REQUIRE(error.code() == ErrorCode::kOutOfMemory);
    }
    ++failures;
    REQUIRE(support::image_of(*cache, id) == before);
  }
  CHECK(failures > 3);
  CHECK(cache->length(id, 1) == 143);
  CHECK(support::image_of(*cache, fork) == before);
}
