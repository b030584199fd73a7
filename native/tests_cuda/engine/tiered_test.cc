// Caches with tiered keys on the device and on this machine, fed the same: pages are equal byte for byte, so queries
// were seen alike, and attention, of one token and of prompts, agrees.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "engine/twin_caches.h"
#include "kvasir/kvasir.h"
#include "pages/page_case.h"
#include "reference/attention.h"

namespace {

using kvasir::Cache;
using kvasir::CacheConfig;
using kvasir::ElementType;
using kvasir::Side;
using page_case::Buffer;
using page_case::bytes_of;
using twin_caches::CachePointer;
using twin_caches::ConfigPointer;

constexpr int kQueryHeads = 6, kKvHeads = 2;

struct Setting {
  int head_dim;
  double key_bits, group;
  const char* values;
  int value_bits;
  bool scaled;
  double parameter_bits = 16;

  std::string describe() const {
    std::ostringstream text;
    text << "d=" << head_dim << " key_bits=" << key_bits << " group=" << group << " values=" << values << "/"
         << value_bits << (scaled ? " scaled" : "") << " parameters of " << parameter_bits;
    return text.str();
  }
};

std::vector<float> random_numbers(std::mt19937& random, size_t count, int period) {
  std::normal_distribution<float> normal;
  std::vector<float> numbers;
  for (size_t i = 0; i < count; ++i) numbers.push_back(normal(random) * (i % period % 13 == 5 ? 6.0f : 1.0f));
  return numbers;
}

CachePointer make_cache(const Setting& s, const char* backend) {
  const ConfigPointer config(CacheConfig::create(1));
  config->set_heads(0, kQueryHeads, kKvHeads, s.head_dim);
  config->set_codec(0, Side::kKeys, "tiered", 2);
  config->set_option(0, Side::kKeys, "mode", 2);
  config->set_option(0, Side::kKeys, "key_bits", s.key_bits);
  config->set_option(0, Side::kKeys, "group", s.group);
  config->set_option(0, Side::kKeys, "parameter_bits", s.parameter_bits);
  config->set_codec(0, Side::kValues, s.values, s.value_bits);
  config->set_sinks(5);
  config->set_window(20);
  if (s.scaled) {
    std::vector<float> factors;
    for (int i = 0; i < kKvHeads * s.head_dim; ++i) factors.push_back(0.5f + static_cast<float>(i % 7) / 4.0f);
    config->set_key_scaling(0, factors.data(), static_cast<int64_t>(factors.size()));
  }
  config->set_backend(backend);
  return CachePointer(Cache::create(*config));
}

class Pair : public twin_caches::Twins {
 public:
  explicit Pair(const Setting& s)
      : Twins(make_cache(s, "scalar"), make_cache(s, "cuda")),
        setting_(s),
        random_(static_cast<unsigned>(s.head_dim)),
        lowest_(static_cast<size_t>(kKvHeads * s.head_dim), 0.0f),
        highest_(lowest_) {}

  void append(int64_t id, int tokens) {
    const size_t count = static_cast<size_t>(tokens) * kKvHeads * setting_.head_dim;
    const auto keys = random_numbers(random_, count, setting_.head_dim);
    const auto values = random_numbers(random_, count, setting_.head_dim);
    for (size_t i = 0; i < count; ++i) {
      const size_t channel = i % lowest_.size();
      lowest_[channel] = std::min(lowest_[channel], keys[i]);
      highest_[channel] = std::max(highest_[channel], keys[i]);
    }
    here_->append(id, 0, keys.data(), values.data(), tokens);
    append_there(id, keys, values, tokens);
  }

  void attend(const std::vector<int64_t>& ids, int tokens) {
    const size_t count = ids.size() * tokens * kQueryHeads * static_cast<size_t>(setting_.head_dim);
    const auto queries = random_numbers(random_, count, setting_.head_dim);
    std::vector<float> expected(count), outputs(count);
    const auto sequences = static_cast<int>(ids.size());
    here_->attend(0, ids.data(), sequences, tokens, queries.data(), expected.data());
    const Buffer device_queries(bytes_of(queries)), device_outputs(4 * count);
    there_->attend_device(0, ids.data(), sequences, tokens, device_queries.data(), device_outputs.data(),
                          kvasir::ElementType::kFloat32, stream_);
    // The queries belong to the caller again, in the order of the stream.
    CUDA(cudaMemsetAsync(device_queries.data(), 0xff, 4 * count, stream_));
    CUDA(cudaStreamSynchronize(stream_));
    CUDA(cudaMemcpy(outputs.data(), device_outputs.data(), 4 * count, cudaMemcpyDeviceToHost));
    const double error = reference::nmse(outputs.data(), std::vector<double>(expected.begin(), expected.end()));
    const double allowed = allowance(queries);
    CHECK(error <= allowed, setting_.describe() << " " << tokens << " tokens of " << ids.size() << ": " << error
                                                << ", allowed " << allowed);
  }

  // A graph of one attention, run before and after sequences grow; queries that it saw count for later pages.
  void follow(const std::vector<int64_t>& ids) {
    const size_t count = ids.size() * kQueryHeads * static_cast<size_t>(setting_.head_dim);
    Graph graph(*this, ids, count);
    for (const int tokens : {0, 1, 140, 260}) {
      if (tokens > 0) append(ids[0], tokens);
      for (int run = 0; run < 3; ++run) {
        const auto queries = random_numbers(random_, count, setting_.head_dim);
        std::vector<float> expected;
        const auto outputs = graph.run(queries, expected);
        const double error = reference::nmse(outputs.data(), std::vector<double>(expected.begin(), expected.end()));
        CHECK(error <= allowance(queries), setting_.describe() << " in a graph, " << tokens << " more: " << error);
      }
    }
  }

  void compare(int64_t id, int64_t least) const { compare_pages(id, least, kKvHeads, setting_.describe()); }

 private:
  // What Precision::kExact promises: 1e-6 times the mean square, over heads of all queries, of the most by which one
  // channel's share of scores varies, in units of 16. Here outliers of queries meet outliers of keys.
  double allowance(const std::vector<float>& queries) const {
    const size_t d = static_cast<size_t>(setting_.head_dim), heads = queries.size() / d;
    double sum = 0.0;
    for (size_t head = 0; head < heads; ++head) {
      const size_t first = head % kQueryHeads / (kQueryHeads / kKvHeads) * d;
      double most = 16.0;
      for (size_t c = 0; c < d; ++c) {
        const double range = static_cast<double>(highest_[first + c]) - lowest_[first + c];
        most = std::max(most, std::abs(queries[head * d + c]) * range / std::sqrt(static_cast<double>(d)));
      }
      sum += most / 16.0 * most / 16.0;
    }
    return 1e-6 * sum / static_cast<double>(heads);
  }

  const Setting setting_;
  std::mt19937 random_;
  std::vector<float> lowest_, highest_;  // of keys, by kv head and channel
};

DEVICE_CASE("tiered caches: pages of the device are those of this machine") {
  for (const Setting& s : {Setting{64, 2.7, 32, "uniform", 2, false}, Setting{128, 4.0, 128, "uniform", 4, true},
                           Setting{96, 3.3, 64, "uniform", 2, true}, Setting{80, 2.7, 32, "uniform", 2, true},
                           Setting{64, 3.0, 64, "f16", 16, false}, Setting{64, 2.7, 128, "progressive", 8, false},
                           Setting{64, 2.7, 32, "uniform", 2, false, 8}}) {
    Pair pair(s);
    const int64_t id = pair.new_sequence();
    pair.append(id, 170);  // seals a page before any query was seen
    pair.attend({id}, 1);
    pair.attend({id}, 9);
    const int64_t fork = pair.fork(id);
    pair.attend({id, fork, id}, 1);
    pair.append(id, 300);
    pair.append(fork, 140);
    pair.attend({fork, id}, 3);
    pair.truncate(id, 200);
    pair.attend({id}, 1);
    pair.append(id, 130);
    pair.append(id, 270);  // no queries since the last page
    pair.compare(id, 4);
    pair.compare(fork, 2);
  }
}

DEVICE_CASE("tiered caches: a graph follows sequences that grow, and what it sees decides about later pages") {
  for (const Setting& s : {Setting{64, 2.7, 32, "uniform", 2, false}, Setting{128, 4.0, 128, "uniform", 4, true}}) {
    Pair pair(s);
    const int64_t id = pair.new_sequence(), other = pair.new_sequence();
    pair.append(id, 200);
    pair.append(other, 30);
    pair.follow({id, other});
    pair.append(id, 200);
    pair.compare(id, 5);
  }
}

}  // namespace
