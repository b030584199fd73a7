// Sequences that were saved and restored are, to the bit, those that never were: what they hold, what attention makes
// of it, and how they go on. For every codec and every backend of this machine.
#include <algorithm>
#include <string>
#include <vector>

#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/errors.h"
#include "support/every_codec.h"
#include "support/saved.h"

using kvasir::Cache;
using kvasir::Side;
using support::EveryCodec;

namespace {

support::CachePointer cache_on(const std::string& codec, const std::string& backend, int64_t budget = 0) {
  const support::ConfigPointer config = EveryCodec::config(codec, budget);
  config->set_backend(backend.c_str());
  return support::CachePointer(Cache::create(*config));
}

// Tokens first .. first + count - 1 of a stream that is the same for all, in every layer.
void append(Cache& cache, int64_t id, int64_t first, int64_t count) {
  static const auto rows = support::float_rows(77, 1300, 2 * EveryCodec::kLayers * EveryCodec::kRow, 1.0);
  std::vector<float> keys, values;
  for (int layer = 0; layer < EveryCodec::kLayers; ++layer) {
    keys.clear();
    values.clear();
    for (int64_t t = first; t < first + count; ++t) {
      const auto at = rows.begin() + (t * 2 * EveryCodec::kLayers + 2 * layer) * EveryCodec::kRow;
      keys.insert(keys.end(), at, at + EveryCodec::kRow);
      values.insert(values.end(), at + EveryCodec::kRow, at + 2 * EveryCodec::kRow);
    }
    cache.append(id, layer, keys.data(), values.data(), count);
  }
}

std::vector<float> attend(Cache& cache, int64_t id, uint64_t seed) {
  std::vector<float> all;
  for (int layer = 0; layer < EveryCodec::kLayers; ++layer) {
    if (cache.length(id, layer) == 0) continue;
    const auto queries = support::float_rows(seed + layer, 1, EveryCodec::kQuery, 1.0);
    std::vector<float> outputs(EveryCodec::kQuery);
    cache.attend(layer, &id, 1, 1, queries.data(), outputs.data());
    all.insert(all.end(), outputs.begin(), outputs.end());
  }
  return all;
}

// A prompt, then tokens one by one with attention between them.
int64_t grown(Cache& cache, int64_t prompt, int64_t length) {
  const int64_t id = cache.new_sequence();
  if (prompt > 0) append(cache, id, 0, prompt);
  for (int64_t t = prompt; t < length;) {
    const int64_t count = std::min<int64_t>(length - t, 1 + t % 37);
    append(cache, id, t, count);
    attend(cache, id, static_cast<uint64_t>(t));
    t += count;
  }
  return id;
}

// Both go on alike.
void check_same(Cache& one, int64_t a, Cache& other, int64_t b, int64_t length, bool same_backend = true,
                bool same_budget = true) {
  CHECK(support::image_of(one, a) == support::image_of(other, b));
  if (same_backend) CHECK(attend(one, a, 5) == attend(other, b, 5));
  if (!same_backend) {  // both must have seen the same
    attend(one, a, 5);
    attend(other, b, 5);
  }
  if (!same_budget) return;
  append(one, a, length, 150);
  append(other, b, length, 150);
  CHECK(support::image_of(one, a) == support::image_of(other, b));
  if (same_backend) CHECK(attend(one, a, 6) == attend(other, b, 6));
}

}  // namespace

TEST_CASE("a restored sequence is the one that was saved: codecs, backends, lengths") {
  support::Sampler sampler;
  for (const std::string& codec : EveryCodec::names()) {
    for (const std::string& backend : support::backend_names()) {
      for (const int64_t length : {0, 1, 3, 4, 5, 20, 36, 131, 151, 152, 153, 167, 168, 279, 280, 281, 420}) {
        if (sampler.skip() && length != 420) continue;
        CAPTURE(codec);
        CAPTURE(backend);
        CAPTURE(length);
        const auto cache = cache_on(codec, backend), other = cache_on(codec, backend);
        const int64_t id = grown(*cache, std::min<int64_t>(length, 200), length);
        const support::Saved saved = support::save(*cache, id);
        CHECK(static_cast<int64_t>(saved.blocks.size()) == cache->page_count(id, 0));
        const auto before = support::stats_of(*cache)->bytes();
        check_same(*cache, cache->fork(id), *other, support::restore(*other, saved), length);
        // And into the cache that it came from.
        const int64_t again = support::restore(*cache, saved);
        CHECK(support::image_of(*cache, id) == support::image_of(*cache, again));
        cache->release(again);
        CHECK(support::stats_of(*cache)->bytes() >= before);
      }
    }
  }
}

// From one sealed page to the next but one, token by token: the window has every fill that it can have.
TEST_CASE("windows of all fills") {
  support::Sampler sampler;
  const std::vector<std::string> backends = support::backend_names();
  for (const std::string& codec : EveryCodec::names()) {
    for (const std::string& backend : backends) {
      const auto cache = cache_on(codec, backend), other = cache_on(codec, backend);
      const int64_t id = grown(*cache, 150, 150);
      for (int64_t length = 151; length <= 290; ++length) {
        append(*cache, id, length - 1, 1);
        if (sampler.skip() && backend != backends.back()) continue;
        CAPTURE(codec);
        CAPTURE(backend);
        CAPTURE(length);
        const int64_t restored = support::restore(*other, support::save(*cache, id));
        CHECK(support::image_of(*cache, id) == support::image_of(*other, restored));
        CHECK(attend(*cache, cache->fork(id), 5) == attend(*other, restored, 5));
        other->release(restored);
      }
    }
  }
}

TEST_CASE("pages that gave up precision") {
  for (const std::string& backend : support::backend_names()) {
    for (const int64_t budget : {220000, 300000, 400000}) {
      CAPTURE(backend);
      CAPTURE(budget);
      const auto cache = cache_on("progressive", backend, budget), other = cache_on("progressive", backend);
      const int64_t id = grown(*cache, 200, 900);
      CHECK(support::stats_of(*cache)->shrinks(kvasir::kAllLayers) > 0);
      check_same(*cache, id, *other, support::restore(*other, support::save(*cache, id)), 900, true, false);
    }
    const auto spectral = [&](int64_t budget) {
      const support::ConfigPointer config = EveryCodec::shrinking("spectral", budget);
      config->set_backend(backend.c_str());
      return support::CachePointer(kvasir::Cache::create(*config));
    };
    const auto cache = spectral(140000), other = spectral(0);
    const int64_t id = grown(*cache, 200, 900);
    CHECK(support::stats_of(*cache)->shrinks(kvasir::kAllLayers) > 0);
    check_same(*cache, id, *other, support::restore(*other, support::save(*cache, id)), 900, true, false);
  }
}

TEST_CASE("what is saved on one backend is restored on another") {
  const std::vector<std::string> backends = support::backend_names();
  for (const std::string& codec : EveryCodec::names()) {
    for (const std::string& from : backends) {
      const std::string& to = from == backends.front() ? backends.back() : backends.front();
      CAPTURE(codec);
      CAPTURE(from);
      const auto cache = cache_on(codec, from), other = cache_on(codec, to);
      const int64_t id = grown(*cache, 170, 300);
      const support::Saved saved = support::save(*cache, id);
      const int64_t restored = support::restore(*other, saved);
      CHECK(support::image_of(*cache, id) == support::image_of(*other, restored));
      const support::Saved again = support::save(*other, restored);
      CHECK(again.blocks == saved.blocks);
      CHECK(again.state == saved.state);
    }
  }
}

TEST_CASE("what a sequence saw of queries is restored, and takes no memory where there were none") {
  for (const bool sees : {false, true}) {
    CAPTURE(sees);
    const auto cache = cache_on("tiered", "auto"), other = cache_on("tiered", "auto");
    const int64_t id = cache->new_sequence();
    append(*cache, id, 0, 10);
    if (sees) attend(*cache, id, 3);
    const support::Saved saved = support::save(*cache, id);
    const int64_t again = support::restore(*other, saved);
    CHECK(support::stats_of(*other)->bytes() == support::stats_of(*cache)->bytes());
    CHECK(support::save(*other, again).state == saved.state);
    if (sees) {  // their count, too: without it pages would be sealed as if there had been none
      append(*cache, id, 10, 150);
      append(*other, again, 10, 150);
      CHECK(support::image_of(*other, again) == support::image_of(*cache, id));
      continue;
    }
    // The state has them nonetheless: sums of 0 and means of 1.
    attend(*cache, id, 3);
    CHECK(support::save(*cache, id).state.size() == saved.state.size());
  }
}

static void check_forks_and_cuts(const std::string& codec, const std::string& backend) {
  const auto cache = cache_on(codec, backend), other = cache_on(codec, backend);
  const int64_t id = grown(*cache, 160, 430);
  const int64_t fork = cache->fork(id);
  append(*cache, fork, 430, 3);  // shares pages and blocks of rows
  check_same(*cache, fork, *other, support::restore(*other, support::save(*cache, fork)), 433);

  const int64_t cut = cache->fork(id);
  cache->truncate(cut, 300);  // through a page, which is reopened
  check_same(*cache, cut, *other, support::restore(*other, support::save(*cache, cut)), 300);

  const int64_t uneven = cache->fork(id);
  const auto rows = support::float_rows(9, 140, EveryCodec::kRow, 1.0);
  cache->append(uneven, 0, rows.data(), rows.data(), 140);
  const int64_t restored = support::restore(*other, support::save(*cache, uneven));
  CHECK(support::image_of(*cache, uneven) == support::image_of(*other, restored));
  CHECK(cache->rollback(uneven) == other->rollback(restored));
  CHECK(support::image_of(*cache, uneven) == support::image_of(*other, restored));

  const int64_t guessing = cache->fork(id);
  cache->guess(guessing);
  append(*cache, guessing, 430, 60);
  const int64_t guessed = support::restore(*other, support::save(*cache, guessing));
  const int kept[] = {0, 3, 4, 40};
  cache->keep(guessing, kept, 4);
  other->keep(guessed, kept, 4);
  check_same(*cache, guessing, *other, guessed, 434);
}

TEST_CASE("forks, cuts, layers of different lengths, guesses") {
  for (const std::string& codec : EveryCodec::names()) {
    for (const std::string& backend : support::backend_names()) {
      CAPTURE(codec);
      CAPTURE(backend);
      check_forks_and_cuts(codec, backend);
    }
  }
}

TEST_CASE("a sequence goes on while it is saved, and the saved one is the one of that moment") {
  for (const std::string& codec : EveryCodec::names()) {
    CAPTURE(codec);
    const auto cache = cache_on(codec, "auto"), other = cache_on(codec, "auto");
    const int64_t id = grown(*cache, 160, 290);
    const auto then = support::image_of(*cache, id);
    const support::SavingPointer saving(kvasir::Saving::create(*cache, id));
    append(*cache, id, 290, 200);
    cache->truncate(id, 100);
    cache->release(id);
    support::RestoringPointer restoring(kvasir::Restoring::create(*other));
    for (int64_t i = 0; i < saving->blocks(); ++i) support::add(*restoring, support::block_of(*saving, i));
    support::Bytes state(static_cast<size_t>(saving->write_state(nullptr, 0)));
    saving->write_state(state.data(), static_cast<int64_t>(state.size()));
    restoring->set_state(state.data(), static_cast<int64_t>(state.size()));
    CHECK(support::image_of(*other, restoring->finish()) == then);
  }
}

TEST_CASE("blocks alone make the sequence that was cut after them") {
  for (const std::string& codec : EveryCodec::names()) {
    CAPTURE(codec);
    const auto cache = cache_on(codec, "auto"), other = cache_on(codec, "auto");
    const int64_t id = grown(*cache, 160, 600);
    const support::Saved saved = support::save(*cache, id);
    CHECK(saved.whole_blocks == 4);
    for (size_t blocks = 1; blocks <= saved.blocks.size(); ++blocks) {
      const int64_t prefix = cache->fork(id);
      cache->truncate(prefix, 4 + 128 * static_cast<int64_t>(blocks));
      support::RestoringPointer restoring(kvasir::Restoring::create(*other));
      for (size_t i = 0; i < blocks; ++i) support::add(*restoring, saved.blocks[i]);
      const int64_t restored = restoring->finish();
      CHECK(support::image_of(*cache, prefix) == support::image_of(*other, restored));
      CHECK(attend(*cache, prefix, 5) == attend(*other, restored, 5));
      append(*other, restored, 4 + 128 * static_cast<int64_t>(blocks), 20);
      CHECK(attend(*other, restored, 5).size() == 2 * EveryCodec::kQuery);
    }
  }
}

TEST_CASE("blocks behind a sequence of the cache make the sequence of all of them, and share what was there") {
  for (const std::string& codec : EveryCodec::names()) {
    CAPTURE(codec);
    const auto cache = cache_on(codec, "auto"), other = cache_on(codec, "auto");
    const support::Saved saved = support::save(*cache, grown(*cache, 160, 600));
    support::RestoringPointer whole(kvasir::Restoring::create(*other));
    for (const support::Bytes& block : saved.blocks) support::add(*whole, block);
    const int64_t expected = whole->finish();
    for (size_t known = 1; known <= saved.blocks.size(); ++known) {
      support::RestoringPointer first(kvasir::Restoring::create(*other));
      for (size_t i = 0; i < known; ++i) support::add(*first, saved.blocks[i]);
      const int64_t prefix = first->finish();
      const int64_t before = support::stats_of(*other)->pages(0);
      support::RestoringPointer rest(kvasir::Restoring::create_behind(*other, prefix));
      for (size_t i = known; i < saved.blocks.size(); ++i) support::add(*rest, saved.blocks[i]);
      const int64_t all = rest->finish();
      CHECK(support::image_of(*other, all) == support::image_of(*other, expected));
      CHECK(attend(*other, all, 5) == attend(*other, expected, 5));
      // Pages that were there are not held twice.
      const auto more = static_cast<int64_t>(saved.blocks.size() - known);
      CHECK(support::stats_of(*other)->pages(0) == before + more);
      // Neither depends on the other.
      other->release(prefix);
      append(*other, all, 4 + 128 * static_cast<int64_t>(saved.blocks.size()), 150);
      CHECK(attend(*other, all, 5).size() == 2 * EveryCodec::kQuery);
      other->release(all);
    }
  }
}

TEST_CASE("only behind whole blocks, and with the blocks that follow them") {
  const auto cache = cache_on("uniform", "auto");
  const int64_t id = grown(*cache, 160, 600);
  const support::Saved saved = support::save(*cache, id);
  const auto refused = [&](int64_t sequence) {
    return support::error_of(kvasir::ErrorCode::kInvalidArgument,
                             [&] { kvasir::Restoring::destroy(kvasir::Restoring::create_behind(*cache, sequence)); });
  };
  CHECK(refused(id).find("ends with a block") != std::string::npos);
  CHECK(refused(cache->new_sequence()).find("ends with a block") != std::string::npos);
  const int64_t prefix = cache->fork(id);
  cache->truncate(prefix, 4 + 128 * 2);
  const auto bytes = support::stats_of(*cache)->bytes();
  for (const size_t wrong : {0u, 1u, 3u}) {
    const support::RestoringPointer restoring(kvasir::Restoring::create_behind(*cache, prefix));
    CHECK(support::error_of(kvasir::ErrorCode::kBadBytes, [&] {
            support::add(*restoring, saved.blocks[wrong]);
          }).find("in place of block 2") != std::string::npos);
  }
  const support::RestoringPointer restoring(kvasir::Restoring::create_behind(*cache, prefix));
  support::error_of(kvasir::ErrorCode::kInvalidArgument,
                    [&] { restoring->set_state(saved.state.data(), static_cast<int64_t>(saved.state.size())); });
  CHECK(support::stats_of(*cache)->bytes() == bytes);
}

static void check_sliding(const std::string& codec, const std::string& backend) {
  support::CachePointer caches[2];
  for (auto& cache : caches) {
    const support::ConfigPointer config = EveryCodec::config(codec);
    config->set_sliding_window(1, 100);
    config->set_backend(backend.c_str());
    cache.reset(Cache::create(*config));
  }
  const int64_t id = grown(*caches[0], 160, 900);
  CHECK(caches[0]->page_count(id, 1) < caches[0]->page_count(id, 0));
  const support::Saved saved = support::save(*caches[0], id);
  const int64_t restored = support::restore(*caches[1], saved);
  for (int64_t step = 0; step < 3; ++step) {
    CHECK(attend(*caches[0], id, 5) == attend(*caches[1], restored, 5));
    for (int layer = 0; layer < 2; ++layer) {
      CHECK(caches[0]->page_count(id, layer) == caches[1]->page_count(restored, layer));
    }
    append(*caches[0], id, 900 + 100 * step, 100);
    append(*caches[1], restored, 900 + 100 * step, 100);
  }
  // Blocks saved now lack pages that the window has passed: a short prefix cannot be made of them.
  const support::RestoringPointer blocks(kvasir::Restoring::create(*caches[1]));
  support::add(*blocks, saved.blocks[0]);
  CHECK(support::error_of(kvasir::ErrorCode::kBadBytes, [&] { blocks->finish(); }).find("reason=7") !=
        std::string::npos);
  const support::RestoringPointer all(kvasir::Restoring::create(*caches[1]));
  for (const support::Bytes& block : saved.blocks) support::add(*all, block);
  const auto length = 4 + 128 * static_cast<int64_t>(saved.blocks.size());
  const int64_t attached = all->finish();
  CHECK(caches[1]->length(attached, 1) == length);
}

TEST_CASE("layers that slide") {
  for (const std::string& codec : EveryCodec::names()) {
    for (const std::string& backend : support::backend_names()) {
      CAPTURE(codec);
      CAPTURE(backend);
      check_sliding(codec, backend);
    }
  }
}

static void check_shared_rows(const std::string& codec, const std::string& backend) {
  support::CachePointer caches[2];
  for (auto& cache : caches) {
    const support::ConfigPointer config(kvasir::CacheConfig::create(1));
    config->set_latent(0, 4, 192, 128);
    config->set_codec(0, Side::kKeys, codec.c_str(), codec == "f16" ? 16 : 4);
    config->set_sinks(4);
    config->set_backend(backend.c_str());
    cache.reset(Cache::create(*config));
  }
  CHECK(std::string(caches[0]->description()).find("shared rows of 192 values 128") != std::string::npos);
  const auto rows = support::float_rows(5, 300, 192, 1.0);
  const int64_t id = caches[0]->new_sequence();
  caches[0]->append(id, 0, rows.data(), nullptr, 300);
  const int64_t restored = support::restore(*caches[1], support::save(*caches[0], id));
  const auto queries = support::float_rows(6, 4, 192, 1.0);
  std::vector<float> outputs[2];
  for (int i = 0; i < 2; ++i) {
    outputs[i].resize(4 * 128);
    const int64_t sequence = i == 0 ? id : restored;
    caches[i]->append(sequence, 0, rows.data(), nullptr, 140);
    caches[i]->attend(0, &sequence, 1, 1, queries.data(), outputs[i].data());
  }
  CHECK(outputs[0] == outputs[1]);
}

TEST_CASE("rows that keys and values share") {
  for (const std::string codec : {"f16", "uniform", "progressive"}) {
    for (const std::string& backend : support::backend_names()) {
      CAPTURE(codec);
      CAPTURE(backend);
      check_shared_rows(codec, backend);
    }
  }
}

TEST_CASE("positions that were moved stay so") {
  const auto cache = cache_on("commvq", "auto"), other = cache_on("commvq", "auto");
  const int64_t id = grown(*cache, 160, 300);
  cache->shift(id, 10, 1000);
  cache->shift(id, 200, -70);
  check_same(*cache, id, *other, support::restore(*other, support::save(*cache, id)), 300);
}
