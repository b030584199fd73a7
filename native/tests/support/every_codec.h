// One small cache for each codec of the registry, all of the same shape: for tests of what must hold whatever the
// codec.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kvasir/kvasir.h"
#include "support/caches.h"
#include "support/commvq_scene.h"
#include "support/data.h"
#include "support/spectral_basis.h"

namespace support {

struct EveryCodec {
  static constexpr int kLayers = 2, kKvHeads = 2, kGroup = 2, kHeadDim = 32;
  static constexpr int kRow = kKvHeads * kHeadDim, kQuery = kRow * kGroup;

  static std::vector<std::string> names() {
    std::vector<std::string> names;
    for (int i = 0; i < kvasir::codec_count(); ++i) names.push_back(kvasir::codec_name(i));
    return names;
  }

  // Memory runs out at `budget` bytes; 0: never. Codecs that can shrink begin at 16 bits.
  static ConfigPointer config(const std::string& codec, int64_t budget = 0) {
    ConfigPointer config(kvasir::CacheConfig::create(kLayers));
    const bool trained = codec == "commvq";
    for (int layer = 0; layer < kLayers; ++layer) {
      config->set_heads(layer, kKvHeads * kGroup, kKvHeads, kHeadDim);
      const int bits = codec == "f16" || codec == "progressive" ? 16 : trained ? 1 : 2;
      config->set_codec(layer, kvasir::Side::kKeys, codec.c_str(), bits);
      config->set_codec(layer, kvasir::Side::kValues, codec == "tiered" ? "uniform" : codec.c_str(), bits);
      if (trained) add_codebooks(*config, layer);
      if (codec == "spectral") add_bases(*config, layer, kKvHeads, kHeadDim);
    }
    config->set_budget(budget);
    config->set_sinks(4);
    config->set_window(20);
    return config;
  }

  // The same for codecs whose pages shrink, of which `spectral` falls from 4 code bits to a half only if it is told to.
  static ConfigPointer shrinking(const std::string& codec, int64_t budget) {
    ConfigPointer falling = config(codec, budget);
    for (int layer = 0; codec == "spectral" && layer < kLayers; ++layer) {
      for (const kvasir::Side side : {kvasir::Side::kKeys, kvasir::Side::kValues}) {
        falling->set_option(layer, side, "code_bits", 4);
        falling->set_option(layer, side, "floor_bits", 0.5);
      }
    }
    return falling;
  }

  static CachePointer cache(const std::string& codec, int64_t budget = 0) {
    return CachePointer(kvasir::Cache::create(*config(codec, budget)));
  }

 private:
  static void add_codebooks(kvasir::CacheConfig& config, int layer) {
    constexpr int kStages = 4, kEntries = 16;  // 4 x 4 bits for 16 pairs of channels: one bit a channel
    const auto tables = float_rows(11, kKvHeads * kStages * kEntries, kHeadDim, 0.3);
    const Owned<kvasir::KeyCodebook> keys(
        kvasir::KeyCodebook::create(kKvHeads, kHeadDim, kvasir::RopePairs::kHalves, kStages, kEntries, tables.data()));
    const auto table = float_rows(12, kRow, kRow, 0.1);
    const Owned<kvasir::ValueCodebook> values(kvasir::ValueCodebook::create(kRow, kRow, table.data(), nullptr));
    double frequencies[kHeadDim / 2];
    kvasir::rope_frequencies(10000.0, kHeadDim, frequencies);
    config.set_rope(layer, kvasir::RopePairs::kHalves, frequencies, kHeadDim / 2, 1.0);
    config.set_key_codebook(layer, *keys, 1);
    config.set_value_codebook(layer, *values);
  }
};

// All that can be seen of a sequence, in bits: lengths, rows, pages, side tables.
inline std::vector<uint8_t> image_of(kvasir::Cache& cache, int64_t id) {
  std::vector<uint8_t> image;
  const auto add = [&](const void* bytes, size_t count) {
    const auto* begin = static_cast<const uint8_t*>(bytes);
    image.insert(image.end(), begin, begin + count);
  };
  for (int layer = 0; layer < EveryCodec::kLayers; ++layer) {
    const int64_t length = cache.length(id, layer), pages = cache.page_count(id, layer);
    add(&length, sizeof length);
    for (const kvasir::Side side : {kvasir::Side::kKeys, kvasir::Side::kValues}) {
      std::vector<float> rows(static_cast<size_t>(length) * EveryCodec::kRow);
      if (length > 0) cache.read(id, layer, side, 0, length, rows.data());
      add(rows.data(), rows.size() * sizeof(float));
      for (int head = 0; head < EveryCodec::kKvHeads; ++head) {
        for (int64_t page = 0; page < pages; ++page) {
          const int64_t bytes = cache.read_page(id, layer, page, side, head, nullptr, 0);
          std::vector<uint8_t> part(static_cast<size_t>(bytes));
          cache.read_page(id, layer, page, side, head, part.data(), bytes);
          add(part.data(), part.size());
        }
        std::vector<float> table(static_cast<size_t>(cache.table_size(id, layer, side)) * EveryCodec::kHeadDim);
        cache.read_table(id, layer, side, head, table.data(), cache.table_size(id, layer, side));
        add(table.data(), table.size() * sizeof(float));
      }
    }
  }
  return image;
}

}  // namespace support
