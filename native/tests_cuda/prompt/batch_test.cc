// Batches of prompts through the public interface, which attend together: each gets what it gets alone, bit for bit.
// What it gets is for engine/prompt_test.cc to say.
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "engine/twin_caches.h"
#include "kvasir/kvasir.h"

namespace {

using kvasir::AttendBatch;
using kvasir::Cache;
using kvasir::CacheConfig;
using kvasir::Side;
using twin_caches::CachePointer;
using twin_caches::ConfigPointer;

struct Sequence {
  int64_t length;
  int tokens;         // that ask
  bool tree = false;  // each sees every second of those before it
};

struct Setting {
  const char* keys;
  int key_bits;
  const char* values;
  int value_bits;
  int head_dim, kv_heads, query_heads;
  int64_t sliding_window = 0;
  float soft_cap = 0.0f;
  bool learned_sinks = false;
  bool latent = false;
};

std::string describe(const Setting& s) {
  return std::string(s.keys) + " " + std::to_string(s.key_bits) + ", " + s.values +
         ", d=" + std::to_string(s.head_dim) + ", sliding " + std::to_string(s.sliding_window);
}

std::vector<float> random_numbers(unsigned seed, size_t count) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(count);
  for (float& x : numbers) x = normal(random);
  return numbers;
}

CachePointer make_cache(const Setting& s) {
  const ConfigPointer config(CacheConfig::create(1));
  if (s.latent) {
    config->set_latent(0, s.query_heads, s.head_dim, s.head_dim / 2);
  } else {
    config->set_heads(0, s.query_heads, s.kv_heads, s.head_dim);
  }
  config->set_codec(0, Side::kKeys, s.keys, s.key_bits);
  config->set_codec(0, Side::kValues, s.values, s.value_bits);
  config->set_sliding_window(0, s.sliding_window);
  config->set_soft_cap(0, s.soft_cap);
  std::vector<float> logits;
  for (int h = 0; s.learned_sinks && h < s.query_heads; ++h) logits.push_back(0.5f * static_cast<float>(h) - 1.0f);
  config->set_sink_logits(0, logits.data(), static_cast<int>(logits.size()));
  config->set_window(70);
  config->set_sinks(5);
  config->set_backend("cuda");
  return CachePointer(Cache::create(*config));
}

struct Answer {
  std::vector<float> outputs, sums;
};

// Of sequences first .. first + count - 1.
Answer ask(Cache& cache, const Setting& s, const std::vector<int64_t>& ids, const std::vector<Sequence>& sequences,
           size_t first, size_t count) {
  std::vector<int> tokens;
  std::vector<uint64_t> masks;
  std::vector<float> queries;
  const size_t width = static_cast<size_t>(s.query_heads) * static_cast<size_t>(s.head_dim);
  for (size_t i = first; i < first + count; ++i) {
    tokens.push_back(sequences[i].tokens);
    const auto own = random_numbers(static_cast<unsigned>(77 + i), static_cast<size_t>(sequences[i].tokens) * width);
    queries.insert(queries.end(), own.begin(), own.end());
    for (int t = 0; t < sequences[i].tokens; ++t) {
      const uint64_t every_second = 0x5555555555555555u << t % 2;
      masks.push_back(sequences[i].tree ? every_second & ((uint64_t{2} << t) - 1) : 0);
    }
  }
  Answer answer;
  answer.outputs.assign(queries.size() / (s.latent ? 2 : 1), -99.0f);
  answer.sums.assign(masks.size() * static_cast<size_t>(s.query_heads), -99.0f);
  AttendBatch batch;
  batch.sequences = ids.data() + first;
  batch.count = static_cast<int>(count);
  batch.tokens = tokens.data();
  batch.queries.data = queries.data();
  batch.outputs.data = answer.outputs.data();
  batch.log_sums = answer.sums.data();
  batch.masks = masks.data();
  cache.attend(batch);
  return answer;
}

void check_batch(const Setting& s, const std::vector<Sequence>& sequences) {
  const CachePointer cache = make_cache(s);
  std::vector<int64_t> ids;
  for (const Sequence& each : sequences) {
    const auto keys =
        random_numbers(static_cast<unsigned>(ids.size()), static_cast<size_t>(each.length * s.kv_heads * s.head_dim));
    const auto values = random_numbers(static_cast<unsigned>(1000 + ids.size()), keys.size());
    ids.push_back(cache->new_sequence());
    cache->append(ids.back(), 0, keys.data(), s.latent ? nullptr : values.data(), each.length);
  }
  const Answer all = ask(*cache, s, ids, sequences, 0, sequences.size());
  CHECK(all.outputs == ask(*cache, s, ids, sequences, 0, sequences.size()).outputs, describe(s) << ": asked again");
  size_t row = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto rows = static_cast<size_t>(sequences[i].tokens) * static_cast<size_t>(s.query_heads);
    const size_t width = static_cast<size_t>(s.head_dim) / (s.latent ? 2 : 1);
    const Answer alone = ask(*cache, s, ids, sequences, i, 1);
    const bool same =
        std::equal(alone.outputs.begin(), alone.outputs.end(), all.outputs.begin() + static_cast<long>(row * width));
    const bool same_sums = std::equal(alone.sums.begin(), alone.sums.end(), all.sums.begin() + static_cast<long>(row));
    CHECK(same && same_sums, describe(s) << ": sequence " << i << " of " << sequences[i].length << " tokens, "
                                         << sequences[i].tokens << " ask");
    row += rows;
  }
}

// Chunks that no kernel of single tokens takes.
const std::vector<Sequence> kChunks = {{72, 72},    {133, 66},  {1500, 700}, {65, 65},
                                       {2000, 128}, {400, 250}, {128, 128},  {9000, 70}};

DEVICE_CASE("prompts of a batch: what one gets does not depend on the others") {
  check_batch({"uniform", 2, "uniform", 2, 128, 2, 8}, kChunks);
  check_batch({"uniform", 4, "uniform", 4, 64, 2, 4}, kChunks);
  check_batch({"uniform", 2, "uniform", 2, 96, 2, 4}, kChunks);
  check_batch({"f16", 16, "f16", 16, 64, 1, 4}, kChunks);
  check_batch({"pattern", 2, "pattern", 2, 64, 2, 4}, kChunks);
  check_batch({"tiered", 2, "uniform", 2, 128, 1, 4}, kChunks);
  check_batch({"uniform", 2, "uniform", 2, 128, 2, 4, 100}, kChunks);
  check_batch({"uniform", 2, "uniform", 2, 64, 2, 4, 3000, 2.0f, true}, kChunks);
}

// Without kernels of single tokens all go together: single tokens and trees beside chunks.
DEVICE_CASE("prompts of a batch: single tokens and trees beside chunks") {
  const std::vector<Sequence> sequences = {{300, 1},       {1500, 700}, {90, 40, true}, {1, 1},         {133, 66},
                                           {700, 5, true}, {20, 2},     {2500, 1},      {64, 64, true}, {9000, 70}};
  for (const int d : {80, 112}) {
    check_batch({"uniform", 4, "uniform", 4, d, 2, 4}, sequences);
    check_batch({"f16", 16, "uniform", 4, d, 1, 8, 100}, sequences);
    check_batch({"uniform", 4, "uniform", 4, d, 2, 4, 0, 2.0f, true}, sequences);
  }
}

DEVICE_CASE("prompts of a batch: rows that keys and values share") {
  const std::vector<Sequence> sequences = {{300, 70}, {90, 1}, {133, 40, true}, {500, 200}};
  check_batch({"uniform", 8, "uniform", 8, 128, 1, 4, 0, 0.0f, false, true}, sequences);
}

// With 64 query heads, 1024 tokens of a prompt go together: slices, beside others.
DEVICE_CASE("prompts of a batch: more query rows than go together") {
  check_batch({"uniform", 4, "uniform", 4, 64, 2, 64}, {{1300, 1100}, {200, 100}, {1500, 1030}, {70, 70}});
}

DEVICE_CASE("prompts of a batch: as many as there may be") {
  std::vector<Sequence> sequences;
  for (int i = 0; i < 80; ++i) sequences.push_back({65 + i * 37 % 300, 65});
  check_batch({"uniform", 2, "uniform", 2, 128, 1, 4}, sequences);
}

}  // namespace
