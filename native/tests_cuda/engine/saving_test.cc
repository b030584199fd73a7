// Sequences saved on the device are, byte for byte, those that this machine saves again after restoring them, and come
// back to the device with the same attention to the bit.
#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "engine/twin_caches.h"
#include "kvasir/kvasir.h"

namespace {

using kvasir::Cache;
using kvasir::CacheConfig;
using kvasir::Side;
using twin_caches::CachePointer;
using twin_caches::ConfigPointer;

constexpr int kQueryHeads = 8, kKvHeads = 2, kLayers = 2;

struct Setting {
  const char *keys, *values;
  int key_bits, value_bits, head_dim;
  int64_t budget = 0;

  std::string describe() const {
    std::ostringstream text;
    text << keys << "/" << key_bits << " " << values << "/" << value_bits << " d=" << head_dim << " budget=" << budget;
    return text.str();
  }
};

CachePointer make_cache(const Setting& s, const char* backend) {
  const ConfigPointer config(CacheConfig::create(kLayers));
  config->set_heads(kvasir::kAllLayers, kQueryHeads, kKvHeads, s.head_dim);
  config->set_codec(kvasir::kAllLayers, Side::kKeys, s.keys, s.key_bits);
  config->set_codec(kvasir::kAllLayers, Side::kValues, s.values, s.value_bits);
  config->set_sliding_window(1, 300);
  config->set_sinks(5);
  config->set_window(20);
  config->set_budget(s.budget);
  config->set_backend(backend);
  return CachePointer(Cache::create(*config));
}

std::vector<float> numbers(unsigned seed, size_t count) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> result;
  for (size_t i = 0; i < count; ++i) result.push_back(normal(random));
  return result;
}

void append(Cache& cache, int64_t id, const Setting& s, int tokens, unsigned seed) {
  const size_t count = static_cast<size_t>(tokens) * kKvHeads * s.head_dim;
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto keys = numbers(seed + 10 * layer, count), values = numbers(seed + 10 * layer + 1, count);
    cache.append(id, layer, keys.data(), values.data(), tokens);
  }
}

std::vector<float> attend(Cache& cache, int64_t id, const Setting& s, unsigned seed) {
  std::vector<float> all;
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto queries = numbers(seed, static_cast<size_t>(kQueryHeads) * s.head_dim);
    std::vector<float> outputs(queries.size());
    cache.attend(layer, &id, 1, 1, queries.data(), outputs.data());
    all.insert(all.end(), outputs.begin(), outputs.end());
  }
  return all;
}

using Images = std::vector<std::vector<uint8_t>>;  // blocks, then the state

Images save(Cache& cache, int64_t id) {
  const std::unique_ptr<kvasir::Saving, twin_caches::Deleter> saving(kvasir::Saving::create(cache, id));
  Images images;
  for (int64_t i = 0; i < saving->blocks(); ++i) {
    images.emplace_back(static_cast<size_t>(saving->write_block(i, nullptr, nullptr, 0)));
    saving->write_block(i, nullptr, images.back().data(), static_cast<int64_t>(images.back().size()));
  }
  images.emplace_back(static_cast<size_t>(saving->write_state(nullptr, 0)));
  saving->write_state(images.back().data(), static_cast<int64_t>(images.back().size()));
  return images;
}

int64_t restore(Cache& cache, const Images& images) {
  const std::unique_ptr<kvasir::Restoring, twin_caches::Deleter> restoring(kvasir::Restoring::create(cache));
  for (size_t i = 0; i + 1 < images.size(); ++i) {
    restoring->add_block(images[i].data(), static_cast<int64_t>(images[i].size()), nullptr);
  }
  restoring->set_state(images.back().data(), static_cast<int64_t>(images.back().size()));
  return restoring->finish();
}

// Images in memory that the device reads by itself.
class PinnedImages {
 public:
  explicit PinnedImages(const Images& images) {
    for (const auto& image : images) {
      void* memory = nullptr;
      CUDA(cudaHostAlloc(&memory, image.size(), cudaHostAllocDefault));
      std::memcpy(memory, image.data(), image.size());
      images_.push_back({static_cast<uint8_t*>(memory), static_cast<int64_t>(image.size())});
    }
  }
  ~PinnedImages() {
    for (const auto& image : images_) cudaFreeHost(image.first);
  }
  PinnedImages(const PinnedImages&) = delete;

  int64_t restore(Cache& cache) const {
    const std::unique_ptr<kvasir::Restoring, twin_caches::Deleter> restoring(kvasir::Restoring::create(cache));
    for (size_t i = 0; i + 1 < images_.size(); ++i) {
      restoring->add_block(images_[i].first, images_[i].second, nullptr);
    }
    restoring->set_state(images_.back().first, images_.back().second);
    return restoring->finish();
  }

 private:
  std::vector<std::pair<uint8_t*, int64_t>> images_;
};

DEVICE_CASE("pages that the device checks: pinned memory and other, many layers, damage") {
  for (const Setting& s : {Setting{"uniform", "uniform", 2, 2, 128}, Setting{"uniform", "uniform", 2, 2, 48},
                           Setting{"f16", "f16", 16, 16, 64}, Setting{"progressive", "progressive", 16, 16, 128}}) {
    const std::string name = s.describe();
    const CachePointer cache = make_cache(s, "cuda");
    const int64_t id = cache->new_sequence();
    append(*cache, id, s, 2000, 1);  // more blocks than are on their way at once
    const Images images = save(*cache, id);
    CHECK(images.size() > 10, name);
    const int64_t other = PinnedImages(images).restore(*cache);
    CHECK(save(*cache, other) == images, name << ": from pinned memory");
    CHECK(attend(*cache, id, s, 7) == attend(*cache, other, s, 7), name);
    cache->release(other);
    const auto bytes = [&] {
      const std::unique_ptr<kvasir::CacheStats, twin_caches::Deleter> stats(cache->stats());
      return stats->bytes();
    };
    const int64_t before = bytes();
    for (const size_t block : {size_t{0}, images.size() / 2, images.size() - 2}) {
      for (const size_t from_end : {size_t{1}, images[block].size() / 3}) {
        Images damaged = images;
        damaged[block][damaged[block].size() - from_end] ^= 4;
        for (const bool pin : {false, true}) {
          bool refused = false;
          try {
            if (pin) {
              PinnedImages(damaged).restore(*cache);
            } else {
              restore(*cache, damaged);
            }
          } catch (const kvasir::Error& error) {
            refused = error.code() == kvasir::ErrorCode::kBadBytes;
          }
          CHECK(refused, name << " block " << block << " from its end " << from_end << " pinned " << pin);
          CHECK(bytes() == before, name << ": memory is lost");
        }
      }
    }
    CHECK(save(*cache, restore(*cache, images)) == images, name << ": afterwards");
  }
}

DEVICE_CASE("saved on the device, restored here and there") {
  for (const Setting& s :
       {Setting{"f16", "f16", 16, 16, 128}, Setting{"uniform", "uniform", 2, 2, 128},
        Setting{"uniform", "uniform", 3, 4, 64}, Setting{"uniform", "uniform", 8, 1, 96},
        Setting{"uniform", "uniform", 4, 4, 256}, Setting{"uniform", "uniform", 2, 2, 48},
        Setting{"pattern", "pattern", 2, 2, 128}, Setting{"pattern", "uniform", 2, 2, 64},
        Setting{"progressive", "progressive", 16, 16, 128}, Setting{"progressive", "progressive", 16, 16, 128, 700000},
        Setting{"tiered", "uniform", 2, 2, 128}, Setting{"tiered", "uniform", 2, 4, 64},
        Setting{"tiered", "f16", 2, 16, 64}}) {
    const std::string name = s.describe();
    const CachePointer there = make_cache(s, "cuda"), again = make_cache(s, "cuda"), here = make_cache(s, "scalar");
    const int64_t id = there->new_sequence();
    append(*there, id, s, 200, 1);
    attend(*there, id, s, 2);
    append(*there, id, s, 330, 3);
    attend(*there, id, s, 4);
    append(*there, id, s, 250, 5);
    if (s.budget > 0) {
      const std::unique_ptr<kvasir::CacheStats, twin_caches::Deleter> stats(there->stats());
      CHECK(stats->shrinks(kvasir::kAllLayers) > 0, name << ": nothing shrank");
    }
    const Images images = save(*there, id);
    CHECK(images.size() > 5, name);
    const int64_t below = restore(*here, images), back = restore(*again, images);
    // Inspection converts pages on this machine, saving on the device.
    for (int64_t page = 0; page < there->page_count(id, 0); ++page) {
      for (const Side side : {Side::kKeys, Side::kValues}) {
        for (int head = 0; head < kKvHeads; ++head) {
          CHECK(twin_caches::page_of(*there, id, page, side, head) ==
                    twin_caches::page_of(*here, below, page, side, head),
                name << " page " << page << " side " << static_cast<int>(side) << " head " << head);
        }
      }
    }
    CHECK(save(*here, below) == images, name << ": this machine saves other bytes");
    CHECK(save(*again, back) == images, name << ": the device saves other bytes");
    CHECK(attend(*there, id, s, 7) == attend(*again, back, s, 7), name << ": attention differs");
    attend(*here, below, s, 7);
    // And all of them go on alike: from this machine's back to the device.
    append(*there, id, s, 150, 8);
    append(*again, back, s, 150, 8);
    CHECK(attend(*there, id, s, 9) == attend(*again, back, s, 9), name << ": attention differs afterwards");
    const CachePointer last = make_cache(s, "cuda");
    const int64_t up = restore(*last, save(*here, below));
    append(*last, up, s, 150, 8);
    CHECK(last->page_count(up, 0) == there->page_count(id, 0), name);
  }
}

}  // namespace
