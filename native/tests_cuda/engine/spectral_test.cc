// Caches of spectral pages on the device and on this machine, fed the same: pages are equal byte for byte, rows too,
// and attention, of one token and of prompts, agrees with double precision over the rows.
#include <cuda_runtime_api.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "engine/twin_caches.h"
#include "kernels/cuda/primitives/shared_memory.h"
#include "kvasir/kvasir.h"
#include "pages/page_case.h"
#include "reference/attention.h"

namespace {

using kvasir::Cache;
using kvasir::CacheConfig;
using kvasir::Side;
using page_case::Buffer;
using page_case::bytes_of;
using twin_caches::CachePointer;
using twin_caches::ConfigPointer;

struct Setting {
  int head_dim, kv_heads, group;
  double key_bits, value_bits;
  bool basis;
  const char* values = "spectral";

  std::string describe() const {
    std::ostringstream text;
    text << "d=" << head_dim << " heads=" << kv_heads << "x" << group << " bits=" << key_bits << "/" << value_bits
         << " " << values << (basis ? " with a basis" : "");
    return text.str();
  }
};

CachePointer make_cache(const Setting& s, const char* backend) {
  const ConfigPointer config(CacheConfig::create(1));
  config->set_heads(0, s.kv_heads * s.group, s.kv_heads, s.head_dim);
  config->set_codec(0, Side::kKeys, "spectral", 2);
  config->set_option(0, Side::kKeys, "code_bits", s.key_bits);
  config->set_codec(0, Side::kValues, s.values, 2);
  if (std::string(s.values) == "spectral") config->set_option(0, Side::kValues, "code_bits", s.value_bits);
  for (const Side side : {Side::kKeys, Side::kValues}) {
    if (!s.basis || (side == Side::kValues && std::string(s.values) != "spectral")) continue;
    std::mt19937 random(side == Side::kKeys ? 3 : 4);
    std::normal_distribution<float> normal(0.0f, 0.3f / std::sqrt(static_cast<float>(s.head_dim)));
    std::vector<float> vectors;
    for (int i = 0; i < s.kv_heads * s.head_dim * s.head_dim; ++i) {
      vectors.push_back(normal(random) + (i % s.head_dim == i / s.head_dim % s.head_dim ? 1.0f : 0.0f));
    }
    config->set_basis(0, side, vectors.data(), static_cast<int64_t>(vectors.size()));
  }
  config->set_sinks(5);
  config->set_window(20);
  config->set_backend(backend);
  return CachePointer(Cache::create(*config));
}

class Pair : public twin_caches::Twins {
 public:
  explicit Pair(const Setting& s)
      : Twins(make_cache(s, "scalar"), make_cache(s, "cuda")),
        setting_(s),
        random_(static_cast<unsigned>(s.head_dim)) {}

  // Channels spread over six octaves, some are constant, some tokens large.
  std::vector<float> rows(int tokens) {
    std::normal_distribution<float> normal;
    std::vector<float> rows;
    const int width = setting_.kv_heads * setting_.head_dim;
    for (int i = 0; i < tokens * width; ++i) {
      const int c = i % width % setting_.head_dim;
      const float spread = std::exp2(-6.0f * static_cast<float>(c) / static_cast<float>(setting_.head_dim));
      const float large = i / width % 17 == 3 ? 8.0f : 1.0f;
      rows.push_back(large * ((c % 11 == 5 ? 0.0f : spread * normal(random_)) + (c % 7 == 2 ? 1.0f : 0.0f)));
    }
    return rows;
  }

  void append(int64_t id, int tokens) {
    const auto keys = rows(tokens), values = rows(tokens);
    here_->append(id, 0, keys.data(), values.data(), tokens);
    append_there(id, keys, values, tokens);
  }

  void attend(const std::vector<int64_t>& ids, int tokens) {
    std::normal_distribution<float> normal;
    const size_t count =
        ids.size() * tokens * setting_.kv_heads * setting_.group * static_cast<size_t>(setting_.head_dim);
    std::vector<float> queries, expected(count), outputs(count);
    for (size_t i = 0; i < count; ++i) queries.push_back(normal(random_));
    const auto sequences = static_cast<int>(ids.size());
    here_->attend(0, ids.data(), sequences, tokens, queries.data(), expected.data());
    const Buffer device_queries(bytes_of(queries)), device_outputs(4 * count);
    there_->attend_device(0, ids.data(), sequences, tokens, device_queries.data(), device_outputs.data(),
                          kvasir::ElementType::kFloat32, stream_);
    CUDA(cudaStreamSynchronize(stream_));
    CUDA(cudaMemcpy(outputs.data(), device_outputs.data(), 4 * count, cudaMemcpyDeviceToHost));
    const double error = reference::nmse(outputs.data(), std::vector<double>(expected.begin(), expected.end()));
    // What Precision::kExact promises; the scalar backend's own error is far below.
    CHECK(error <= 1e-6, setting_.describe() << " " << tokens << " tokens of " << ids.size() << ": " << error);
  }

  void compare(int64_t id, int64_t least) const {
    compare_pages(id, least, setting_.kv_heads, setting_.describe());
    compare_rows(id, static_cast<size_t>(setting_.kv_heads) * setting_.head_dim, setting_.describe());
  }

  // Whether all single query tokens so far were a fused kernel's.
  bool fused() const {
    const std::unique_ptr<kvasir::CacheStats, twin_caches::Deleter> stats(there_->stats());
    return stats->fallback_tiles() == 0;
  }

 private:
  const Setting setting_;
  std::mt19937 random_;
};

DEVICE_CASE("spectral caches: pages of the device are those of this machine, and attention agrees") {
  for (const Setting& s :
       {Setting{128, 2, 4, 2.0, 2.0, true}, Setting{128, 8, 4, 2.75, 1.5, true}, Setting{64, 2, 3, 1.0, 0.25, true},
        Setting{96, 1, 7, 4.0, 3.0, false}, Setting{256, 2, 2, 2.0, 1.0, true}, Setting{128, 1, 1, 8.0, 8.0, true},
        Setting{256, 1, 2, 8.0, 8.0, false}, Setting{48, 2, 3, 2.0, 2.0, true},
        Setting{64, 2, 2, 2.0, 2.0, true, "uniform"}}) {
    Pair pair(s);
    const int64_t id = pair.new_sequence();
    pair.append(id, 170);
    pair.attend({id}, 1);
    const int64_t fork = pair.fork(id);
    pair.append(id, 1300);
    pair.append(fork, 140);
    pair.attend({id, fork, id}, 1);
    // Four warps at least, each with a page of a head in shared memory.
    const double code_bytes = s.head_dim * kvasir::kPageTokens * (s.key_bits + s.value_bits) / 8;
    const bool has_room = kvasir::cuda::shared_memory_has(static_cast<int>(4 * code_bytes));
    const bool has_kernel = s.head_dim != 48 && std::string(s.values) == "spectral" && has_room;
    CHECK(pair.fused() == has_kernel, s.describe());
    pair.attend({fork, id}, 3);
    pair.attend({id}, 40);
    pair.truncate(id, 700);
    pair.attend({id}, 1);
    pair.append(id, 130);
    pair.compare(id, 5);
    pair.compare(fork, 2);
  }
}

}  // namespace
