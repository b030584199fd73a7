// Caches with CommVQ on the device and on this machine, fed the same: pages are equal byte for byte, and attention, of
// one token and of prompts, agrees.
#include <cuda_runtime_api.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "commvq/seal_case.h"
#include "engine/twin_caches.h"
#include "kvasir/kvasir.h"
#include "pages/page_case.h"
#include "reference/attention.h"

namespace {

using kvasir::Cache;
using kvasir::CacheConfig;
using kvasir::ElementType;
using kvasir::RopePairs;
using kvasir::Side;
using page_case::Buffer;
using page_case::bytes_of;
using twin_caches::CachePointer;
using twin_caches::ConfigPointer;

constexpr int kGroup = 3;

struct Setting {
  commvq_seal::Setting books;
  int bits;
  const char* keys;
  const char* values;
  int other_bits = 4;

  std::string describe() const { return books.describe() + " " + keys + "/" + values; }
};

std::vector<float> random_numbers(std::mt19937& random, size_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> numbers;
  for (size_t i = 0; i < count; ++i) numbers.push_back(normal(random));
  return numbers;
}

CachePointer make_cache(const Setting& s, const commvq_seal::Scene& scene, const char* backend) {
  const commvq_seal::Setting& books = s.books;
  const ConfigPointer config(CacheConfig::create(1));
  config->set_heads(0, kGroup * books.kv_heads, books.kv_heads, books.head_dim);
  const std::string codecs[2] = {s.keys, s.values};
  for (int side = 0; side < 2; ++side) {
    config->set_codec(0, static_cast<Side>(side), codecs[side].c_str(),
                      codecs[side] == "commvq" ? s.bits : s.other_bits);
  }
  if (codecs[0] == "commvq") {
    std::vector<double> frequencies;
    for (int j = 0; j < books.head_dim / 2; ++j) frequencies.push_back(std::pow(10000.0, -2.0 * j / books.head_dim));
    config->set_rope(0, books.pairs, frequencies.data(), books.head_dim / 2, 1.0);
    config->set_key_codebook(0, *scene.key_codebook, books.refinements);
  }
  if (codecs[1] == "commvq") {
    if (scene.encoder) {
      config->set_value_codebook(0, *scene.value_codebook, *scene.encoder, books.flips);
    } else {
      config->set_value_codebook(0, *scene.value_codebook);
    }
  }
  config->set_sinks(5);
  config->set_window(20);
  config->set_backend(backend);
  return CachePointer(Cache::create(*config));
}

class Pair : public twin_caches::Twins {
 public:
  Pair(const Setting& s, const commvq_seal::Scene& scene)
      : Twins(make_cache(s, scene, "scalar"), make_cache(s, scene, "cuda")),
        setting_(s),
        random_(static_cast<unsigned>(s.books.codes)) {}

  Cache& there() { return *there_; }

  // From memory of the device or of this machine.
  void append(int64_t id, int tokens, bool on_device = true) {
    const size_t count = static_cast<size_t>(tokens) * setting_.books.width();
    const auto keys = random_numbers(random_, count), values = random_numbers(random_, count);
    here_->append(id, 0, keys.data(), values.data(), tokens);
    if (!on_device) return there_->append(id, 0, keys.data(), values.data(), tokens);
    append_there(id, keys, values, tokens);
  }

  void attend(const std::vector<int64_t>& ids, int tokens) {
    const size_t count = ids.size() * tokens * kGroup * static_cast<size_t>(setting_.books.width());
    const auto queries = random_numbers(random_, count);
    std::vector<float> expected(count), outputs(count);
    const auto sequences = static_cast<int>(ids.size());
    here_->attend(0, ids.data(), sequences, tokens, queries.data(), expected.data());
    there_->attend(0, ids.data(), sequences, tokens, queries.data(), outputs.data());
    const double error = reference::nmse(outputs.data(), std::vector<double>(expected.begin(), expected.end()));
    // Both work with tables of 16-bit whole numbers: about 1e-7 of a key's power each (commvq/tables.h), and logits of
    // a few units carry that into the weights. A uniform key's products are rounded to 1/32636 of the greatest.
    CHECK(error <= 1e-5, setting_.describe() << " " << tokens << " tokens of " << ids.size() << ": " << error);
  }

  void outgrow(int64_t id, int tokens) {
    const size_t count = kGroup * static_cast<size_t>(setting_.books.width());
    Graph graph(*this, {id}, count);
    const auto queries = random_numbers(random_, count);
    std::vector<float> here;
    CHECK(std::isfinite(graph.run(queries, here)[0]), "there is room");
    for (int done = 0; done < tokens; done += 1024) append(id, 1024, false);
    for (const float x : graph.run(queries, here)) CHECK(std::isnan(x), "there is no room");
  }

  void follow(const std::vector<int64_t>& ids) {
    const size_t count = ids.size() * kGroup * static_cast<size_t>(setting_.books.width());
    Graph graph(*this, ids, count);
    for (const int tokens : {0, 1, 140, 260}) {
      if (tokens > 0) append(ids[0], tokens);
      const auto queries = random_numbers(random_, count);
      std::vector<float> expected;
      const auto outputs = graph.run(queries, expected);
      const double error = reference::nmse(outputs.data(), std::vector<double>(expected.begin(), expected.end()));
      CHECK(error <= 1e-5, setting_.describe() << " in a graph, " << tokens << " more: " << error);
    }
  }

  // CommVQ's parts are those of all kv heads together; of other codecs the first one's are compared.
  void compare(int64_t id, int64_t least) const { compare_pages(id, least, 1, setting_.describe()); }

 private:
  const Setting setting_;
  std::mt19937 random_;
};

const Setting kSettings[] = {
    {{2, 64, RopePairs::kHalves, 5, 64, 1, 128, 0, 0, 1}, 1, "commvq", "commvq"},
    {{3, 80, RopePairs::kNeighbours, 16, 32, 2, 480, 32, 16, 1}, 2, "commvq", "commvq"},
    {{2, 128, RopePairs::kHalves, 11, 64, 0, 256, 0, 0, 1}, 1, "commvq", "uniform"},
    {{2, 64, RopePairs::kHalves, 5, 64, 0, 128, 0, 0, 1}, 1, "tiered", "commvq", 2},
    {{2, 64, RopePairs::kHalves, 5, 64, 0, 128, 0, 0, 1}, 1, "pattern", "commvq", 2},
};

DEVICE_CASE("commvq caches: pages of the device are those of this machine") {
  for (const Setting& s : kSettings) {
    const commvq_seal::Scene scene(s.books);
    Pair pair(s, scene);
    const int64_t id = pair.new_sequence();
    pair.append(id, 3);
    pair.append(id, 170);
    pair.attend({id}, 1);
    pair.attend({id}, 9);
    const int64_t fork = pair.fork(id);
    pair.attend({id, fork, id}, 1);
    pair.append(id, 300);
    pair.append(fork, 140, false);
    pair.attend({fork, id}, 3);
    pair.truncate(id, 200);
    pair.attend({id}, 1);
    pair.append(id, 130, false);
    pair.append(id, 270);
    pair.attend({id, fork}, 1);
    pair.compare(id, 4);
    pair.compare(fork, 2);
  }
}

DEVICE_CASE("commvq caches: a graph follows sequences that grow") {
  for (int i = 0; i < 2; ++i) {
    const commvq_seal::Scene scene(kSettings[i].books);
    Pair pair(kSettings[i], scene);
    const int64_t id = pair.new_sequence(), other = pair.new_sequence();
    pair.append(id, 200);
    pair.append(other, 3);
    pair.follow({id, other});
  }
}

DEVICE_CASE("commvq caches: a graph that has no room for so many pages says so by NaN") {
  const commvq_seal::Scene scene(kSettings[0].books);
  Pair pair(kSettings[0], scene);
  const int64_t id = pair.new_sequence();
  pair.append(id, 10);
  pair.outgrow(id, 260 * 128);
}

DEVICE_CASE("commvq caches: rows that are refused leave finite pages, and are reported by the next call") {
  const commvq_seal::Scene scene(kSettings[0].books);
  Pair pair(kSettings[0], scene);
  Cache& cache = pair.there();
  const int64_t id = pair.new_sequence();
  const size_t width = static_cast<size_t>(kSettings[0].books.width());
  std::vector<float> keys(300 * width, 0.25f), values(300 * width, -0.5f);
  keys[50 * width + 3] = std::numeric_limits<float>::quiet_NaN();
  values[60 * width + 5] = 70000.0f;
  const Buffer device_keys(bytes_of(keys)), device_values(bytes_of(values));
  cache.append_device(id, 0, device_keys.data(), device_values.data(), kvasir::ElementType::kFloat32, 300, nullptr);
  CUDA(cudaDeviceSynchronize());
  const std::vector<float> queries(kGroup * width, 0.1f);
  std::vector<float> outputs(queries.size());
  int reported = 0;
  for (int call = 0; call < 3; ++call) {
    try {
      cache.attend(0, &id, 1, 1, queries.data(), outputs.data());
    } catch (const kvasir::Error& error) {
      CHECK(error.code() == kvasir::ErrorCode::kNotFinite, "code " << static_cast<int>(error.code()));
      ++reported;
    }
  }
  CHECK(reported == 2, reported << " reports, not one for the keys and one for the values");
  bool finite = true;
  for (const float x : outputs) finite = finite && std::isfinite(x);
  CHECK(finite, "outputs");
  CHECK(cache.page_count(id, 0) == 2, cache.page_count(id, 0));
}

}  // namespace
