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
#include "commvq_seal_case.h"
#include "kvasir/kvasir.h"
#include "page_case.h"
#include "reference/attention.h"

namespace {

using kvasir::Cache;
using kvasir::CacheConfig;
using kvasir::ElementType;
using kvasir::RopePairs;
using kvasir::Side;
using page_case::Buffer;
using page_case::bytes_of;

constexpr int kGroup = 3;

struct Deleter {
  void operator()(Cache* cache) const { Cache::destroy(cache); }
  void operator()(CacheConfig* config) const { CacheConfig::destroy(config); }
};
using CachePointer = std::unique_ptr<Cache, Deleter>;

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
  const std::unique_ptr<CacheConfig, Deleter> config(CacheConfig::create(1));
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

std::vector<uint8_t> page_of(Cache& cache, int64_t id, int64_t page, Side side) {
  std::vector<uint8_t> bytes(static_cast<size_t>(cache.read_page(id, 0, page, side, 0, nullptr, 0)));
  cache.read_page(id, 0, page, side, 0, bytes.data(), static_cast<int64_t>(bytes.size()));
  return bytes;
}

// Both caches, in step.
class Pair {
 public:
  explicit Pair(const Setting& s) : setting_(s), scene_(s.books), random_(static_cast<unsigned>(s.books.codes)) {
    here_ = make_cache(s, scene_, "scalar");
    there_ = make_cache(s, scene_, "cuda");
    CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~Pair() { cudaStreamDestroy(stream_); }

  Cache& there() { return *there_; }
  int64_t new_sequence() {
    here_->new_sequence();
    return there_->new_sequence();
  }
  int64_t fork(int64_t id) {
    here_->fork(id);
    return there_->fork(id);
  }
  void truncate(int64_t id, int64_t length) {
    here_->truncate(id, length);
    there_->truncate(id, length);
  }

  // From memory of the device or of this machine.
  void append(int64_t id, int tokens, bool on_device = true) {
    const size_t count = static_cast<size_t>(tokens) * setting_.books.width();
    const auto keys = random_numbers(random_, count), values = random_numbers(random_, count);
    here_->append(id, 0, keys.data(), values.data(), tokens);
    if (!on_device) return there_->append(id, 0, keys.data(), values.data(), tokens);
    const Buffer device_keys(bytes_of(keys)), device_values(bytes_of(values));
    there_->append_device(id, 0, device_keys.data(), device_values.data(), ElementType::kFloat32, tokens, stream_);
    CUDA(cudaStreamSynchronize(stream_));
  }

  void attend(const std::vector<int64_t>& ids, int tokens) {
    const size_t count = ids.size() * tokens * kGroup * static_cast<size_t>(setting_.books.width());
    const auto queries = random_numbers(random_, count);
    std::vector<float> expected(count), outputs(count);
    const auto sequences = static_cast<int>(ids.size());
    here_->attend(0, ids.data(), sequences, tokens, queries.data(), expected.data());
    there_->attend(0, ids.data(), sequences, tokens, queries.data(), outputs.data());
    const double error = reference::nmse(outputs.data(), std::vector<double>(expected.begin(), expected.end()));
    // Both work with tables of 16-bit whole numbers: about 1e-7 of a key's power each (commvq_tables.h), and logits of
    // a few units carry that into the weights. A uniform key's products are rounded to 1/32636 of the greatest.
    CHECK(error <= 1e-5, setting_.describe() << " " << tokens << " tokens of " << ids.size() << ": " << error);
  }

  void compare(int64_t id, int64_t least) const {
    const int64_t pages = there_->page_count(id, 0);
    CHECK(pages == here_->page_count(id, 0) && pages >= least, setting_.describe() << ": " << pages);
    for (int64_t page = 0; page < pages; ++page) {
      for (const Side side : {Side::kKeys, Side::kValues}) {
        const std::string difference =
            page_case::difference(page_of(*there_, id, page, side), page_of(*here_, id, page, side));
        CHECK(difference.empty(), setting_.describe()
                                      << " page " << page << " side " << static_cast<int>(side) << ": " << difference);
      }
    }
  }

 private:
  const Setting setting_;
  const commvq_seal::Scene scene_;
  std::mt19937 random_;
  CachePointer here_, there_;
  cudaStream_t stream_ = nullptr;
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
    Pair pair(s);
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

DEVICE_CASE("commvq caches: rows that are refused leave finite pages, and are reported by the next call") {
  Pair pair(kSettings[0]);
  Cache& cache = pair.there();
  const int64_t id = pair.new_sequence();
  const size_t width = static_cast<size_t>(kSettings[0].books.width());
  std::vector<float> keys(300 * width, 0.25f), values(300 * width, -0.5f);
  keys[50 * width + 3] = std::numeric_limits<float>::quiet_NaN();
  values[60 * width + 5] = 70000.0f;
  const Buffer device_keys(bytes_of(keys)), device_values(bytes_of(values));
  cache.append_device(id, 0, device_keys.data(), device_values.data(), ElementType::kFloat32, 300, nullptr);
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
