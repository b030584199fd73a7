// Caches of min-max codes and float16 on the device and on this machine, fed the same in pieces of all sizes, so that
// pages come from the window, from appended rows, and from both: pages and rows are equal byte for byte.
#include <cuda_runtime_api.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "engine/twin_caches.h"
#include "kvasir/kvasir.h"
#include "pages/page_case.h"

namespace {

using kvasir::Cache;
using kvasir::CacheConfig;
using kvasir::ElementType;
using kvasir::Side;
using page_case::Buffer;
using page_case::TypedNumbers;
using twin_caches::CachePointer;
using twin_caches::ConfigPointer;

struct Setting {
  const char* codec;
  int bits, head_dim, kv_heads, window, sinks;
  bool scaled = false;

  size_t width() const { return static_cast<size_t>(kv_heads) * static_cast<size_t>(head_dim); }
  std::string describe() const {
    std::ostringstream text;
    text << codec << " " << bits << " d=" << head_dim << " window=" << window << " sinks=" << sinks
         << (scaled ? " scaled" : "");
    return text.str();
  }
};

CachePointer make_cache(const Setting& s, const char* backend) {
  const ConfigPointer config(CacheConfig::create(1));
  config->set_heads(0, s.kv_heads, s.kv_heads, s.head_dim);
  for (const Side side : {Side::kKeys, Side::kValues}) config->set_codec(0, side, s.codec, s.bits);
  if (s.scaled) {
    std::mt19937 random(5);
    std::vector<float> factors;
    for (size_t i = 0; i < s.width(); ++i) factors.push_back(0.5f + static_cast<float>(random() % 100) / 17.0f);
    config->set_key_scaling(0, factors.data(), static_cast<int64_t>(factors.size()));
  }
  config->set_sinks(s.sinks);
  config->set_window(s.window);
  config->set_backend(backend);
  return CachePointer(Cache::create(*config));
}

class Pair : public twin_caches::Twins {
 public:
  explicit Pair(const Setting& s) : Twins(make_cache(s, "scalar"), make_cache(s, "cuda")), setting_(s), random_(7) {}

  // From memory of this machine.
  void append(int64_t id, int tokens) {
    const TypedNumbers keys = rows(tokens, ElementType::kFloat32), values = rows(tokens, ElementType::kFloat32);
    for (Cache* cache : {here_.get(), there_.get()}) {
      cache->append(id, 0, keys.numbers.data(), values.numbers.data(), tokens);
    }
  }

  // From the device's, to some sequences at once.
  void append(const std::vector<int64_t>& ids, const std::vector<int64_t>& counts, ElementType type) {
    int tokens = 0;
    for (const int64_t count : counts) tokens += static_cast<int>(count);
    const TypedNumbers keys = rows(tokens, type), values = rows(tokens, type);
    const auto view = [&](const void* data, ElementType of) {
      return kvasir::RowsView{data, of, static_cast<int64_t>(setting_.width()), setting_.head_dim};
    };
    const int count = static_cast<int>(ids.size());
    here_->append_rows(0, ids.data(), counts.data(), count, view(keys.numbers.data(), ElementType::kFloat32),
                       view(values.numbers.data(), ElementType::kFloat32));
    const Buffer device_keys(keys.bytes), device_values(values.bytes);
    there_->append_rows_device(0, ids.data(), counts.data(), count, view(device_keys.data(), type),
                               view(device_values.data(), type), stream_);
    CUDA(cudaStreamSynchronize(stream_));
  }

  void compare(int64_t id, int64_t least) const {
    compare_pages(id, least, setting_.kv_heads, setting_.describe());
    compare_rows(id, setting_.width(), setting_.describe());
  }

 private:
  TypedNumbers rows(int tokens, ElementType type) {
    std::normal_distribution<float> normal;
    std::vector<float> numbers(static_cast<size_t>(tokens) * setting_.width());
    for (float& x : numbers) x = normal(random_);
    return page_case::typed(std::move(numbers), type);
  }

  const Setting setting_;
  std::mt19937 random_;
};

DEVICE_CASE("fragment caches: pages of the device are those of this machine, in whatever pieces rows come") {
  std::vector<Setting> settings = {{"progressive", 4, 128, 2, 20, 3, true}, {"progressive", 16, 64, 1, 128, 0}};
  for (const int window : {0, 1, 128, 200}) {
    settings.push_back({"uniform", 2, 128, 2, window, window % 3});
    settings.push_back({"f16", 16, 96, 1, window, 5});
  }
  settings.push_back({"uniform", 3, 256, 1, 77, 130});
  for (const Setting& setting : settings) {
    Pair pair(setting);
    const int64_t id = pair.new_sequence();
    for (const int tokens : {1, 300, 5, 127, 128, 700, 2}) {
      pair.append(id, tokens);
      pair.compare(id, 0);
    }
    const int64_t fork = pair.fork(id), other = pair.new_sequence();
    pair.append({fork}, {390}, ElementType::kBFloat16);
    pair.append({id, other, fork}, {260, 641, 3}, ElementType::kFloat32);
    pair.append({other, id}, {1, 513}, ElementType::kFloat16);
    pair.truncate(id, 1111);
    pair.append({id}, {333}, ElementType::kBFloat16);
    pair.compare(id, 7);
    pair.compare(fork, 8);
    pair.compare(other, 2);
  }
}

}  // namespace
