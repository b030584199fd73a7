// Memory of callers: each element is read once, whatever happens to it meanwhile, and outputs may lie over queries.
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>
#include <thread>

#include "base/half.h"
#include "cache/config.h"
#include "cache/plan.h"
#include "engine/engines.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/errors.h"
#include "support/every_codec.h"

using kvasir::ElementType;
using kvasir::Side;
using support::EveryCodec;

namespace {

constexpr int kTokens = 300;

// The same rows in one of the element types.
std::vector<uint8_t> in_type(const std::vector<float>& rows, ElementType type) {
  std::vector<uint8_t> bytes(rows.size() * (type == ElementType::kFloat32 ? 4 : 2));
  for (size_t i = 0; i < rows.size(); ++i) {
    if (type == ElementType::kFloat32) {
      std::memcpy(&bytes[4 * i], &rows[i], 4);
    } else {
      const uint16_t half = type == ElementType::kFloat16 ? kvasir::float_to_half(rows[i])
                                                          : static_cast<uint16_t>(kvasir::float_bits(rows[i]) >> 16);
      std::memcpy(&bytes[2 * i], &half, 2);
    }
  }
  return bytes;
}

// An element of such bytes.
float element(const std::vector<uint8_t>& bytes, ElementType type, size_t index) {
  float value;
  uint16_t half;
  std::memcpy(&value, &bytes[type == ElementType::kFloat32 ? 4 * index : 0], 4);
  std::memcpy(&half, &bytes[2 * index], 2);
  if (type == ElementType::kFloat32) return value;
  return type == ElementType::kFloat16 ? kvasir::half_to_float(half) : kvasir::bfloat_to_float(half);
}

void append(kvasir::Cache& cache, int64_t id, ElementType type, const void* keys, const void* values, int tokens) {
  const auto* k = static_cast<const uint16_t*>(keys);
  const auto* v = static_cast<const uint16_t*>(values);
  if (type == ElementType::kFloat16) return cache.append_f16(id, 0, k, v, tokens);
  if (type == ElementType::kBFloat16) return cache.append_bf16(id, 0, k, v, tokens);
  cache.append(id, 0, static_cast<const float*>(keys), static_cast<const float*>(values), tokens);
}

}  // namespace

TEST_CASE("caller memory: once an append has begun, what it stores no longer depends on the rows") {
  for (const std::string& codec : EveryCodec::names()) {
    for (const ElementType type : {ElementType::kFloat32, ElementType::kFloat16, ElementType::kBFloat16}) {
      for (const bool scaled : {false, true}) {
        if (scaled && codec == "commvq") continue;  // keys before RoPE take no scaling
        const auto config = EveryCodec::config(codec);
        std::vector<float> scaling(EveryCodec::kRow, 2.0f);
        if (scaled) config->set_key_scaling(0, scaling.data(), EveryCodec::kRow);
        const auto engine = kvasir::make_engine(config->impl().backend);
        const auto plans = kvasir::plan_layers(config->impl(), engine.kernels);
        engine.engine->prepare(plans);

        const auto rows = support::half_rows(support::Profile::kNormal, 5, kTokens, EveryCodec::kRow);
        const auto given = in_type(rows, type);
        auto keys = given, values = given;
        const auto dense = [&](const void* data) {
          return kvasir::RowsView{data, type, EveryCodec::kRow, EveryCodec::kHeadDim};
        };
        const auto appends =
            engine.engine->begin_appends(plans[0], {{dense(keys.data()), dense(values.data())}, kTokens}, {kTokens});
        kvasir::Append& pending = (*appends)[0];
        std::fill(keys.begin(), keys.end(), 0xFF);  // NaN in every type
        std::fill(values.begin(), values.end(), 0xFF);
        kvasir::SequenceView empty = {};
        pending.open(empty, 2);
        for (const Side side : {Side::kKeys, Side::kValues}) {
          for (int head = 0; head < EveryCodec::kKvHeads; ++head) {
            std::vector<float> got(256 * EveryCodec::kHeadDim);
            pending.rows(side, head, 0, 256, got.data(), EveryCodec::kHeadDim);
            int wrong = 0;
            std::ostringstream first;
            for (size_t i = 0; i < got.size(); ++i) {
              const size_t token = i / EveryCodec::kHeadDim + plans[0].sinks;
              const size_t row = token * EveryCodec::kKvHeads + head;
              float expected = element(given, type, row * EveryCodec::kHeadDim + i % EveryCodec::kHeadDim);
              if (scaled && side == Side::kKeys) expected /= 2.0f;
              expected = kvasir::half_to_float(kvasir::float_to_half(expected));
              if (got[i] != expected && wrong++ == 0)
                first << "; first at " << i << ": " << got[i] << ", not " << expected;
            }
            CHECK_MESSAGE(wrong == 0, codec, ", type ", static_cast<int>(type), ", scaled ", scaled, ": ", wrong,
                          first.str());
          }
        }
      }
    }
  }
}

#if !defined(__SANITIZE_THREAD__)  // the race is the test
TEST_CASE("caller memory: rows that turn NaN during an append are refused or stored finite, and nothing breaks") {
  for (const std::string& codec : EveryCodec::names()) {
    for (const ElementType type : {ElementType::kFloat32, ElementType::kFloat16, ElementType::kBFloat16}) {
      auto rows = in_type(support::half_rows(support::Profile::kNormal, 6, kTokens, EveryCodec::kRow), type);
      const size_t size = rows.size() / (static_cast<size_t>(kTokens) * EveryCodec::kRow);
      std::atomic<bool> stop{false};
      // One element, as fast as it can: then it is good as often as not, whenever it is looked at.
      std::thread spoiler([&] {
        volatile uint8_t* top = &rows[(9 * EveryCodec::kRow + 5) * size + size - 1];  // sign and exponent
        volatile uint8_t* next = top - 1;
        const uint8_t good_top = *top, good_next = *next;
        while (!stop) {
          *next = 0xFF;
          *top = 0xFF;
          *top = good_top;
          *next = good_next;
        }
      });
      const auto cache = EveryCodec::cache(codec);
      int not_finite = 0;
      for (int round = 0; round < support::repeat(100); ++round) {
        const int64_t id = cache->new_sequence();
        try {
          append(*cache, id, type, rows.data(), rows.data(), kTokens);
        } catch (const kvasir::Error& error) {
          REQUIRE(error.code() == kvasir::ErrorCode::kNotFinite);
          REQUIRE(cache->length(id, 0) == 0);
        }
        std::vector<float> stored(static_cast<size_t>(cache->length(id, 0)) * EveryCodec::kRow);
        for (const Side side : {Side::kKeys, Side::kValues}) {
          if (!stored.empty()) cache->read(id, 0, side, 0, kTokens, stored.data());
          for (const float x : stored) not_finite += !std::isfinite(x);
        }
        cache->release(id);
      }
      stop = true;
      spoiler.join();
      CHECK_MESSAGE(not_finite == 0, codec, ", type ", static_cast<int>(type));
    }
  }
}
#endif

TEST_CASE("caller memory: outputs may be written over the queries, in whole or in part, and queries count as given") {
  for (const std::string& codec : EveryCodec::names()) {
    for (const int tokens : {1, 3}) {
      const size_t size = static_cast<size_t>(2 * tokens) * EveryCodec::kQuery;  // of two sequences
      const auto rows = support::half_rows(support::Profile::kNormal, 7, kTokens, EveryCodec::kRow);
      const auto queries = support::float_rows(8, 2 * tokens, EveryCodec::kQuery);
      // Sealing after the attends shows what the codec made of their queries.
      const auto run = [&](std::ptrdiff_t distance) {
        const auto cache = EveryCodec::cache(codec);
        const int64_t ids[2] = {cache->new_sequence(), cache->new_sequence()};
        for (const int64_t id : ids) cache->append(id, 0, rows.data(), rows.data(), 140);
        std::vector<float> memory(3 * size);
        float* from = memory.data() + size;
        std::copy(queries.begin(), queries.end(), from);
        float* to = from + distance;
        cache->attend(0, ids, 2, tokens, from, to);
        std::vector<float> seen(to, to + size);
        for (const int64_t id : ids) {
          cache->append(id, 0, rows.data() + 140 * EveryCodec::kRow, rows.data(), 160);
          const auto image = support::image_of(*cache, id);
          for (const uint8_t byte : image) seen.push_back(byte);
        }
        return seen;
      };
      const auto apart = run(static_cast<std::ptrdiff_t>(size));
      for (const std::ptrdiff_t distance :
           {std::ptrdiff_t{0}, std::ptrdiff_t{1}, std::ptrdiff_t{-1}, std::ptrdiff_t{EveryCodec::kHeadDim},
            -std::ptrdiff_t{EveryCodec::kQuery}, static_cast<std::ptrdiff_t>(size) - 5}) {
        CHECK_MESSAGE(run(distance) == apart, codec, ", ", tokens, " tokens, outputs ", distance, " floats behind");
      }
    }
  }
}

TEST_CASE("caller memory: an element that cannot be stored is named, with its place in numbers") {
  const auto cache = EveryCodec::cache("uniform");
  const int64_t id = cache->new_sequence();
  auto rows = support::float_rows(9, kTokens, EveryCodec::kRow);
  const auto refused = [&](int token, int head, int channel, float value, bool in_keys) {
    auto spoilt = rows;
    spoilt[(static_cast<size_t>(token) * EveryCodec::kKvHeads + head) * EveryCodec::kHeadDim + channel] = value;
    spoilt.back() = NAN;  // the first one counts
    return support::error_of(kvasir::ErrorCode::kNotFinite, [&] {
      cache->append(id, 1, in_keys ? spoilt.data() : rows.data(), in_keys ? rows.data() : spoilt.data(), kTokens);
    });
  };
  CHECK(refused(17, 1, 5, NAN, true).find("[input=keys layer=1 token=17 head=1 channel=5 value=NaN]: ") !=
        std::string::npos);
  CHECK(refused(0, 0, 0, -INFINITY, true).find("channel=0 value=-Infinity]") != std::string::npos);
  const std::string large = refused(298, 0, 31, 40000.0f, false);
  CHECK(large.find("[input=values layer=1 token=298 head=0 channel=31 value=40000]: ") != std::string::npos);
  CHECK(large.find("32752") != std::string::npos);
  auto queries = support::float_rows(10, 2, EveryCodec::kQuery);
  queries[EveryCodec::kQuery + 3 * EveryCodec::kHeadDim + 9] = INFINITY;
  const std::string seen =
      support::error_of(kvasir::ErrorCode::kNotFinite, [&] { cache->observe(1, &id, 1, 2, queries.data()); });
  CHECK(seen.find("[input=queries layer=1 token=1 head=3 channel=9 value=Infinity]: ") != std::string::npos);
}
