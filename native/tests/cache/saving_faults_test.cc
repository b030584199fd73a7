// Bytes that are not right are refused by name, whatever is wrong with them, and leave the cache as it was.
#include <algorithm>
#include <cfloat>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "cache/saving/saving.h"
#include "codecs/codec.h"
#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/errors.h"
#include "support/every_codec.h"
#include "support/failing_memory.h"
#include "support/saved.h"

using kvasir::BadBytes;
using kvasir::Cache;
using kvasir::ErrorCode;
using kvasir::LayerNumbers;
using kvasir::PartKind;
using support::Bytes;
using support::EveryCodec;

namespace {

// A sequence of some pages and a window, whose rows are those of a seed.
int64_t fill(Cache& cache, uint64_t seed, int64_t tokens) {
  const int64_t id = cache.new_sequence();
  for (int layer = 0; layer < EveryCodec::kLayers; ++layer) {
    const auto rows = support::float_rows(seed + layer, static_cast<int>(tokens), 2 * EveryCodec::kRow, 1.0);
    std::vector<float> keys, values;
    for (int64_t t = 0; t < tokens; ++t) {
      const auto at = rows.begin() + t * 2 * EveryCodec::kRow;
      keys.insert(keys.end(), at, at + EveryCodec::kRow);
      values.insert(values.end(), at + EveryCodec::kRow, at + 2 * EveryCodec::kRow);
    }
    cache.append(id, layer, keys.data(), values.data(), std::min<int64_t>(tokens, 160));
    for (int64_t t = 160; t < tokens; ++t) {
      cache.append(id, layer, keys.data() + t * EveryCodec::kRow, values.data() + t * EveryCodec::kRow, 1);
    }
  }
  return id;
}

int reason_of(const std::string& error) {
  const size_t at = error.find("reason=");
  return at == std::string::npos ? 0 : std::stoi(error.substr(at + 7));
}

// Refused for such a reason; the cache is as it was.
template <class Call>
void check_refused(Cache& cache, BadBytes reason, Call call) {
  const support::StatsPointer before = support::stats_of(cache);
  const std::string error = support::error_of(ErrorCode::kBadBytes, call);
  CHECK_MESSAGE(reason_of(error) == static_cast<int>(reason), error);
  const support::StatsPointer after = support::stats_of(cache);
  CHECK(after->bytes() == before->bytes());
  CHECK(after->sequences() == before->sequences());
}

// After a change inside: checksums are right again.
void mend(Bytes& image) {
  const auto number = [&](size_t at, auto value) { std::memcpy(image.data() + at, &value, sizeof value); };
  uint32_t parts;
  std::memcpy(&parts, image.data() + 32, sizeof parts);
  for (uint32_t i = 0; i < parts; ++i) {
    const size_t entry = 256 + 32 * size_t{i};
    int64_t offset, bytes;
    std::memcpy(&offset, image.data() + entry + 16, sizeof offset);
    std::memcpy(&bytes, image.data() + entry + 24, sizeof bytes);
    if (offset < 0 || bytes < 0 || offset > static_cast<int64_t>(image.size()) ||
        bytes > static_cast<int64_t>(image.size()) - offset) {
      continue;
    }
    number(entry + 12, kvasir::crc32c(image.data() + offset, static_cast<size_t>(bytes)));
  }
  number(36, kvasir::crc32c(image.data() + 256, 32 * size_t{parts}));
  number(40, uint32_t{0});
  number(40, kvasir::crc32c(image.data(), 256));
}

// With the first part of a kind changed, as bytes of that type, and its checksums right.
template <class Number, class Change>
support::Saved with_part(support::Saved saved, PartKind kind, Change change) {
  Bytes& state = saved.state;
  const kvasir::ImageReader image(kvasir::ImageType::kState, state.data(), static_cast<int64_t>(state.size()));
  const auto part = std::find_if(image.parts().begin(), image.parts().end(),
                                 [&](const kvasir::ImagePart& each) { return each.kind == kind; });
  REQUIRE(part != image.parts().end());
  std::vector<Number> numbers(static_cast<size_t>(part->bytes) / sizeof(Number));
  std::memcpy(numbers.data(), state.data() + part->offset, static_cast<size_t>(part->bytes));
  change(numbers);
  std::memcpy(state.data() + part->offset, numbers.data(), static_cast<size_t>(part->bytes));
  mend(state);
  return saved;
}

template <class Change>
support::Saved with_numbers(const support::Saved& saved, Change change) {
  return with_part<LayerNumbers>(saved, PartKind::kLayers, change);
}

support::Saved with_guesses_from(const support::Saved& saved, const std::vector<int64_t>& from) {
  return with_numbers(saved, [&](std::vector<LayerNumbers>& layers) {
    for (size_t i = 0; i < from.size(); ++i) layers[i].guesses_from = from[i];
  });
}

void append(Cache& cache, int64_t id, int layer, int64_t tokens) {
  const auto rows = support::float_rows(8, static_cast<int>(tokens), EveryCodec::kRow, 1.0);
  cache.append(id, layer, rows.data(), rows.data(), tokens);
}

}  // namespace

TEST_CASE("no flipped bit, and no cut, is taken") {
  for (const std::string& codec : EveryCodec::names()) {
    CAPTURE(codec);
    const auto cache = EveryCodec::cache(codec);
    const support::Saved saved = support::save(*cache, fill(*cache, 1, 300));
    const auto before = support::stats_of(*cache)->bytes();
    support::Random random(3);
    int refused = 0;
    const int faults = support::repeat(400);
    for (int i = 0; i < faults; ++i) {
      support::Saved spoilt = saved;
      const size_t which = static_cast<size_t>(random.below(static_cast<int>(saved.blocks.size()) + 1));
      Bytes& image = which < saved.blocks.size() ? spoilt.blocks[which] : spoilt.state;
      // Heads and tables are small, and matter as much as the rest.
      const size_t reach = random.chance(0.5) ? std::min<size_t>(image.size(), 512) : image.size();
      if (random.chance(0.2)) {
        image.resize(static_cast<size_t>(random.below(static_cast<int>(image.size()))));
      } else {
        image[static_cast<size_t>(random.below(static_cast<int>(reach)))] ^= static_cast<uint8_t>(1 << random.below(8));
      }
      try {
        cache->release(support::restore(*cache, spoilt));
      } catch (const kvasir::Error& error) {
        refused += error.code() == ErrorCode::kBadBytes;
      }
    }
    CHECK(refused == faults);
    CHECK(support::stats_of(*cache)->bytes() == before);
  }
}

// No state names the digest of such a block: its own checksums are all that guards its head and its table.
TEST_CASE("no flipped bit of a head or table is taken from a block that comes alone") {
  for (const std::string& codec : EveryCodec::names()) {
    CAPTURE(codec);
    const auto cache = EveryCodec::cache(codec);
    Bytes block = support::save(*cache, fill(*cache, 1, 300)).blocks[0];
    const auto before = support::stats_of(*cache)->bytes();
    uint32_t parts;
    std::memcpy(&parts, block.data() + 32, sizeof parts);
    int taken = 0;
    for (size_t bit = 0; bit < 8 * (256 + 32 * size_t{parts}); ++bit) {
      block[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
      try {
        const support::RestoringPointer restoring(kvasir::Restoring::create(*cache));
        support::add(*restoring, block);
        cache->release(restoring->finish());
        ++taken;
      } catch (const kvasir::Error& error) {
        taken += error.code() != ErrorCode::kBadBytes;
      }
      block[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    }
    CHECK(taken == 0);
    CHECK(support::stats_of(*cache)->bytes() == before);
  }
}

TEST_CASE("blocks that are swapped, repeated, missing or of another sequence") {
  for (const std::string& codec : EveryCodec::names()) {
    CAPTURE(codec);
    const auto cache = EveryCodec::cache(codec);
    const support::Saved saved = support::save(*cache, fill(*cache, 1, 420));
    const support::Saved other = support::save(*cache, fill(*cache, 50, 420));
    REQUIRE(saved.blocks.size() == 3);
    support::Saved spoilt = saved;
    std::swap(spoilt.blocks[0], spoilt.blocks[1]);
    check_refused(*cache, BadBytes::kOrder, [&] { support::restore(*cache, spoilt); });
    spoilt = saved;
    spoilt.blocks[1] = spoilt.blocks[0];
    check_refused(*cache, BadBytes::kOrder, [&] { support::restore(*cache, spoilt); });
    spoilt = saved;
    spoilt.blocks.pop_back();
    check_refused(*cache, BadBytes::kIncomplete, [&] { support::restore(*cache, spoilt); });
    spoilt = saved;
    spoilt.blocks[1] = other.blocks[1];
    check_refused(*cache, BadBytes::kOrder, [&] { support::restore(*cache, spoilt); });
    spoilt = saved;
    spoilt.state = other.state;
    check_refused(*cache, BadBytes::kOrder, [&] { support::restore(*cache, spoilt); });
    spoilt.state = saved.blocks[0];
    check_refused(*cache, BadBytes::kInvalid, [&] { support::restore(*cache, spoilt); });
    check_refused(*cache, BadBytes::kIncomplete,
                  [&] { support::RestoringPointer(kvasir::Restoring::create(*cache))->finish(); });
    // Without a state: blocks of two sequences fit each other only where nothing ties them together.
    const bool tables = cache->table_size(1, 0, kvasir::Side::kKeys) > 0;
    const support::RestoringPointer mixed(kvasir::Restoring::create(*cache));
    support::add(*mixed, saved.blocks[0]);
    if (tables) check_refused(*cache, BadBytes::kOrder, [&] { support::add(*mixed, other.blocks[1]); });
  }
}

TEST_CASE("a block is of the tokens that its chain hash names") {
  const auto cache = EveryCodec::cache("uniform");
  const support::SavingPointer saving(kvasir::Saving::create(*cache, fill(*cache, 1, 300)));
  const Bytes chain(kvasir::kDigestBytes, 7), other(kvasir::kDigestBytes, 8);
  const Bytes block = support::block_of(*saving, 0, chain.data());
  const auto size = static_cast<int64_t>(block.size());
  check_refused(*cache, BadBytes::kOrder, [&] {
    support::RestoringPointer(kvasir::Restoring::create(*cache))->add_block(block.data(), size, other.data());
  });
  support::RestoringPointer(kvasir::Restoring::create(*cache))->add_block(block.data(), size, chain.data());
  CHECK(support::error_of(ErrorCode::kInvalidArgument, [&] {
          saving->write_block(9, nullptr, nullptr, 0);
        }).find("block 9 of 2") != std::string::npos);
  Bytes state(static_cast<size_t>(saving->write_state(nullptr, 0)));
  CHECK(support::error_of(ErrorCode::kInvalidArgument, [&] {
          saving->write_state(state.data(), static_cast<int64_t>(state.size()));
        }).find("block 1 was not written") != std::string::npos);
}

TEST_CASE("caches of another kind have another fingerprint") {
  const auto description = [](const std::string& codec, auto change) {
    const support::ConfigPointer config = EveryCodec::config(codec);
    change(*config);
    const support::CachePointer cache(Cache::create(*config));
    return std::string(cache->description());
  };
  const auto none = [](kvasir::CacheConfig&) {};
  for (const std::string& codec : EveryCodec::names()) {
    CAPTURE(codec);
    const std::string own = description(codec, none);
    CHECK(own == description(codec, none));
    CHECK(own == description(codec, [](kvasir::CacheConfig& config) { config.set_backend("scalar"); }));
    CHECK(own == description(codec, [](kvasir::CacheConfig& config) { config.set_budget(1 << 30); }));
    CHECK(own != description(codec, [](kvasir::CacheConfig& config) { config.set_sinks(5); }));
    CHECK(own != description(codec, [](kvasir::CacheConfig& config) { config.set_window(21); }));
    CHECK(own != description(codec, [](kvasir::CacheConfig& config) { config.set_softmax_scale(1, 0.5f); }));
    const std::vector<float> scaling(EveryCodec::kRow, 1.5f);
    CHECK(own != description(codec, [&](kvasir::CacheConfig& config) {
            config.set_key_scaling(1, scaling.data(), EveryCodec::kRow);
          }));
    const uint8_t model[2] = {1, 2};
    const std::string named = description(codec, [&](kvasir::CacheConfig& config) { config.set_model(model, 2); });
    CHECK(named != own);
    CHECK(named.find("model 0102\n") != std::string::npos);
    for (const std::string& other : EveryCodec::names()) CHECK((other == codec) == (own == description(other, none)));
  }
  const std::string own = description("commvq", none);
  CHECK(own != description("commvq", [](kvasir::CacheConfig& config) {
          const auto table = support::float_rows(13, EveryCodec::kRow, EveryCodec::kRow, 0.1);
          const support::Owned<kvasir::ValueCodebook> values(
              kvasir::ValueCodebook::create(EveryCodec::kRow, EveryCodec::kRow, table.data(), nullptr));
          config.set_value_codebook(1, *values);
        }));
  const auto cache = EveryCodec::cache("uniform");
  const auto other = EveryCodec::cache("pattern");
  const support::Saved saved = support::save(*cache, fill(*cache, 1, 300));
  check_refused(*other, BadBytes::kMismatch, [&] { support::restore(*other, saved); });
}

TEST_CASE("a budget that a sequence does not fit refuses it whole") {
  for (const std::string& codec : EveryCodec::names()) {
    CAPTURE(codec);
    const auto cache = EveryCodec::cache(codec);
    const int64_t id = fill(*cache, 1, 420);
    const support::Saved saved = support::save(*cache, id);
    const int64_t needed = support::stats_of(*cache)->bytes();
    const auto exact = EveryCodec::cache(codec, needed);
    CHECK(support::image_of(*exact, support::restore(*exact, saved)) == support::image_of(*cache, id));
    CHECK(support::stats_of(*exact)->bytes() == needed);
    const auto small = EveryCodec::cache(codec, needed - 1);
    support::error_of(ErrorCode::kBudgetExceeded, [&] { support::restore(*small, saved); });
    CHECK(support::stats_of(*small)->bytes() == 0);
    CHECK(support::stats_of(*small)->sequences() == 0);
  }
}

TEST_CASE("others give way to what is restored, and only when all of it is right") {
  const auto cache = EveryCodec::cache("progressive");
  const support::Saved saved = support::save(*cache, fill(*cache, 1, 420));
  const int64_t needed = support::stats_of(*cache)->bytes();
  const auto small = EveryCodec::cache("progressive", needed * 3 / 2);
  const int64_t there = fill(*small, 50, 420);
  const auto before = support::image_of(*small, there);
  support::Saved spoilt = saved;
  spoilt.state[spoilt.state.size() / 2] ^= 1;
  check_refused(*small, BadBytes::kChecksum, [&] { support::restore(*small, spoilt); });
  CHECK(support::image_of(*small, there) == before);
  const int64_t restored = support::restore(*small, saved);
  CHECK(support::image_of(*small, restored) == support::image_of(*cache, 1));
  CHECK(support::image_of(*small, there) != before);
  CHECK(support::stats_of(*small)->shrinks(kvasir::kAllLayers) > 0);
  // Shrunk pages are saved as they are.
  const support::Saved shrunk = support::save(*small, there);
  const auto other = EveryCodec::cache("progressive");
  CHECK(support::image_of(*other, support::restore(*other, shrunk)) == support::image_of(*small, there));
}

TEST_CASE("numbers that make no sense are refused though their checksums are right") {
  for (const std::string& codec : EveryCodec::names()) {
    CAPTURE(codec);
    const auto cache = EveryCodec::cache(codec);
    const support::Saved saved = support::save(*cache, fill(*cache, 1, 300));
    const auto before = support::stats_of(*cache)->bytes();
    support::Random random(9);
    for (int i = 0; i < support::repeat(1500); ++i) {
      support::Saved spoilt = saved;
      const size_t which = static_cast<size_t>(random.below(static_cast<int>(saved.blocks.size()) + 1));
      Bytes& image = which < saved.blocks.size() ? spoilt.blocks[which] : spoilt.state;
      for (int n = 1 + random.below(3); n > 0; --n) {
        const size_t reach = random.chance(0.6) ? std::min<size_t>(image.size(), 700) : image.size();
        const auto at = static_cast<size_t>(random.below(static_cast<int>(reach)));
        image[at] =
            random.chance(0.5) ? static_cast<uint8_t>(random.next()) : static_cast<uint8_t>(255 * random.below(2));
      }
      uint32_t parts;
      std::memcpy(&parts, image.data() + 32, sizeof parts);
      if (parts > (image.size() - 256) / 32) continue;
      mend(image);
      // It may be taken where the change was one of codes or names; then it must be good for something.
      try {
        const int64_t id = support::restore(*cache, spoilt);
        support::image_of(*cache, id);
        const auto queries = support::float_rows(4, 1, EveryCodec::kQuery, 1.0);
        std::vector<float> outputs(EveryCodec::kQuery);
        for (int layer = 0; layer < EveryCodec::kLayers; ++layer) {
          if (cache->length(id, layer) > 0) cache->attend(layer, &id, 1, 1, queries.data(), outputs.data());
        }
        cache->release(id);
      } catch (const kvasir::Error& error) {
        CHECK_MESSAGE(error.code() == ErrorCode::kBadBytes, error.what());
      }
    }
    CHECK(support::stats_of(*cache)->bytes() == before);
  }
}

TEST_CASE("pages whose bytes lead out of them are refused") {
  int codecs = 0;
  for (const std::string& codec : EveryCodec::names()) {
    if (!kvasir::codec_at(kvasir::codec_index(codec)).valid) continue;
    CAPTURE(codec);
    ++codecs;
    const auto cache = EveryCodec::cache(codec);
    support::Saved spoilt = support::save(*cache, fill(*cache, 1, 300));
    Bytes& block = spoilt.blocks[1];
    const kvasir::ImageReader image(kvasir::ImageType::kBlock, block.data(), static_cast<int64_t>(block.size()));
    for (const kvasir::ImagePart& part : image.parts()) {
      if (part.kind != kvasir::PartKind::kPage) continue;
      // Behind the table of a page that has one.
      std::fill(block.begin() + part.offset + 64, block.begin() + part.offset + part.bytes, uint8_t{0xFF});
    }
    mend(block);
    check_refused(*cache, BadBytes::kInvalid, [&] { support::restore(*cache, spoilt); });
  }
  CHECK(codecs >= 2);
}

TEST_CASE("restored pages give up precision like any others") {
  const auto cache = EveryCodec::cache("progressive");
  const support::Saved saved = support::save(*cache, fill(*cache, 1, 420));
  const auto tight = EveryCodec::cache("progressive", support::stats_of(*cache)->bytes());
  const int64_t restored = support::restore(*tight, saved);
  const auto rows = support::float_rows(6, 140, EveryCodec::kRow, 1.0);
  tight->append(restored, 0, rows.data(), rows.data(), 140);
  CHECK(support::stats_of(*tight)->shrinks(kvasir::kAllLayers) > 0);
}

TEST_CASE("guesses that no cache has are refused though their checksums are right") {
  const auto cache = EveryCodec::cache("uniform");
  const int64_t id = fill(*cache, 1, 280);  // 4 sinks, 2 pages, 20 in the window
  const support::Saved none = support::save(*cache, id);
  cache->guess(id);
  for (int layer = 0; layer < EveryCodec::kLayers; ++layer) append(*cache, id, layer, 30);
  const support::Saved some = support::save(*cache, id);
  for (int layer = 0; layer < EveryCodec::kLayers; ++layer) append(*cache, id, layer, 30);
  const support::Saved many = support::save(*cache, id);
  const auto check = [&](const support::Saved& saved, const std::vector<int64_t>& from) {
    CAPTURE(from[0]);
    CAPTURE(from[1]);
    check_refused(*cache, BadBytes::kInvalid, [&] { support::restore(*cache, with_guesses_from(saved, from)); });
  };
  for (const int64_t from : {int64_t{-2}, int64_t{281}, INT64_MAX, INT64_MIN}) check(none, {from, from});
  check(some, {259, 259});  // in a page
  check(some, {0, 0});
  check(many, {275, 275});  // 65 of them
  check(some, {280, -1});
  check(some, {-1, 280});
  check(some, {280, 281});
  for (const support::Saved& good : {with_guesses_from(some, {260, 260}), with_guesses_from(many, {276, 276})}) {
    const int64_t restored = support::restore(*cache, good);
    const int kept[] = {0, 40};
    cache->keep(restored, kept, 2);
    CHECK(cache->length(restored, 1) == cache->length(restored, 0));
  }
}

TEST_CASE("layers of guessing sequences may differ in length, and some have no rows") {
  const auto cache = EveryCodec::cache("uniform");
  const int64_t id = fill(*cache, 1, 280);
  cache->guess(id);
  append(*cache, id, 0, 10);
  cache->truncate(id, 285);
  const support::Saved uneven = support::save(*cache, id);
  const int64_t restored = support::restore(*cache, uneven);
  CHECK(support::save(*cache, restored).state == uneven.state);
  CHECK(cache->rollback(restored) == 280);

  const support::ConfigPointer config = EveryCodec::config("uniform");
  config->set_source(1, 0);
  const support::CachePointer sharing(Cache::create(*config));
  const int64_t shared = sharing->new_sequence();
  append(*sharing, shared, 0, 280);
  const support::Saved plain = support::save(*sharing, shared);
  sharing->guess(shared);
  append(*sharing, shared, 0, 10);
  const support::Saved saved = support::save(*sharing, shared);
  const auto check = [&](const support::Saved& good, const std::vector<int64_t>& from) {
    check_refused(*sharing, BadBytes::kInvalid, [&] { support::restore(*sharing, with_guesses_from(good, from)); });
  };
  check(saved, {280, -1});
  check(saved, {280, 280});
  check(plain, {-1, 0});
  const int64_t again = support::restore(*sharing, saved);
  const int kept[] = {1, 7};
  sharing->keep(again, kept, 2);
  append(*sharing, again, 0, 5);
  CHECK(sharing->length(again, 0) == 287);
}

TEST_CASE("a sliding layer has the pages that its newest token sees, and the one before its guesses") {
  const support::ConfigPointer config = EveryCodec::config("uniform");
  config->set_sliding_window(1, 100);
  const support::CachePointer cache(Cache::create(*config));
  const support::Saved later = support::save(*cache, fill(*cache, 1, 900));  // whose blocks lack pages of layer 1
  // Three pages are sealed, and end at 388.
  for (const int tokens : {487, 488}) {
    for (const int guesses : {0, 30}) {
      CAPTURE(tokens);
      CAPTURE(guesses);
      const int64_t id = fill(*cache, 1, tokens);
      cache->guess(id);
      for (int layer = 0; guesses > 0 && layer < EveryCodec::kLayers; ++layer) append(*cache, id, layer, guesses);
      support::Saved saved = support::save(*cache, id);
      REQUIRE(saved.blocks.size() == 3);
      kvasir::Sha256 digests;
      for (size_t i = 0; i < 3; ++i) {
        saved.blocks[i] = later.blocks[i];
        const kvasir::ImageReader block(kvasir::ImageType::kBlock, saved.blocks[i].data(),
                                        static_cast<int64_t>(saved.blocks[i].size()));
        digests.add(block.digest().data(), block.digest().size());
      }
      const kvasir::Digest chain = digests.finish();
      saved = with_numbers(saved, [&](std::vector<LayerNumbers>& layers) { layers[1].dropped_pages = 3; });
      std::copy(chain.begin(), chain.end(), saved.state.begin() + 96);
      mend(saved.state);
      if (tokens == 487) {
        check_refused(*cache, BadBytes::kIncomplete, [&] { support::restore(*cache, saved); });
      } else {
        CHECK(cache->length(support::restore(*cache, saved), 1) == tokens + guesses);
      }
    }
  }
}

TEST_CASE("statistics of queries are magnitudes, and as many as can be counted") {
  const auto cache = EveryCodec::cache("tiered");
  const int64_t id = fill(*cache, 1, 300);
  const auto attend = [&](const std::vector<float>& queries) {
    std::vector<float> outputs(EveryCodec::kQuery);
    cache->attend(0, &id, 1, 1, queries.data(), outputs.data());
  };
  attend(support::float_rows(4, 1, EveryCodec::kQuery, 1.0));
  const support::Saved saved = support::save(*cache, id);
  const auto refused = [&](const support::Saved& spoilt) {
    check_refused(*cache, BadBytes::kInvalid, [&] { support::restore(*cache, spoilt); });
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  for (const double value : {-1.0, -kInfinity, kNan}) {
    CAPTURE(value);
    refused(with_part<double>(saved, PartKind::kQueries, [&](std::vector<double>& sums) { sums[7] = value; }));
  }
  for (const double value : {-1.0, kInfinity, kNan}) {
    CAPTURE(value);
    refused(with_part<float>(saved, PartKind::kQueries,
                             [&](std::vector<float>& means) { means.back() = static_cast<float>(value); }));
  }
  for (const int64_t count : {INT64_MAX, INT64_MAX - 1, int64_t{-1}}) {
    CAPTURE(count);
    refused(with_numbers(saved, [&](std::vector<LayerNumbers>& layers) { layers[0].query_count = count; }));
  }
  // Sums do grow to infinity: of two queries as large as there are.
  attend(std::vector<float>(EveryCodec::kQuery, FLT_MAX));
  const support::Saved large = support::save(*cache, id);
  CHECK(support::save(*cache, support::restore(*cache, large)).state == large.state);
}

// Pages that died while a layer is made would wait for whoever makes room, who waits for the layer.
TEST_CASE("what fails at last leaves its pages to the one who restores, and what succeeds takes them") {
  const auto cache = EveryCodec::cache("progressive");
  const int64_t filled = fill(*cache, 1, 420);
  const support::Saved saved = support::save(*cache, filled);
  cache->release(filled);
  int failures = 0;
  for (int nth = 1;; ++nth) {
    support::RestoringPointer restoring(kvasir::Restoring::create(*cache));
    support::add(*restoring, saved.blocks[0]);
    const int64_t prefix = restoring->finish();
    restoring.reset(kvasir::Restoring::create_behind(*cache, prefix));
    cache->release(prefix);
    for (size_t i = 1; i < saved.blocks.size(); ++i) support::add(*restoring, saved.blocks[i]);
    const auto before = support::stats_of(*cache)->bytes();
    int64_t id = 0;
    bool failed = false;
    try {
      const support::FailingMemory memory(nth);
      id = restoring->finish();
    } catch (const std::bad_alloc&) {
      failed = true;
    } catch (const kvasir::Error& error) {
      CHECK(error.code() == ErrorCode::kOutOfMemory);
      failed = true;
    }
    if (!failed) {
      cache->release(id);
      CHECK(support::stats_of(*cache)->bytes() == 0);
      break;
    }
    ++failures;
    REQUIRE(support::stats_of(*cache)->bytes() == before);
  }
  CHECK(failures > 10);
  CHECK(support::stats_of(*cache)->bytes() == 0);
}
