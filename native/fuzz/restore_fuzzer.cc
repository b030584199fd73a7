// Saved sequences of every codec, spoilt byte by byte with checksums that are right again, and bytes that are no images
// at all: they are refused, or become sequences that can be used like any others.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fuzz/input.h"
#include "kvasir/kvasir.h"

namespace kvasir::fuzz {
namespace {

struct Destroy {
  template <class T>
  void operator()(T* object) const {
    T::destroy(object);
  }
};
template <class T>
using Owned = std::unique_ptr<T, Destroy>;
using Bytes = std::vector<uint8_t>;

constexpr int kLayers = 2, kHeads = 2, kDim = 32, kRow = kHeads * kDim, kTokens = 300;

// A cache of one codec, and a sequence of it as bytes: its blocks, then the state.
struct Sample {
  Owned<Cache> cache;
  std::vector<Bytes> images;
  std::vector<float> rows;
};

std::vector<float> noise(int count) {
  uint64_t state = 7;
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& number : numbers) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    number = static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-30f;
  }
  return numbers;
}

template <class Write>
Bytes written(const Write& write) {
  Bytes bytes(static_cast<size_t>(write(nullptr, int64_t{0})));
  write(bytes.data(), static_cast<int64_t>(bytes.size()));
  return bytes;
}

Sample make_sample(int codec) {
  Sample sample;
  Owned<CacheConfig> config(CacheConfig::create(kLayers));
  config->set_heads(kAllLayers, kHeads, kHeads, kDim);
  int bits = 16;
  for (const int width : {2, 4, 16, 1}) {
    if (codec_has_bits(codec, width)) {
      bits = width;
      break;
    }
  }
  for (const Side side : {Side::kKeys, Side::kValues}) {
    if (codec_has_side(codec, side)) config->set_codec(kAllLayers, side, codec_name(codec), bits);
  }
  config->set_sinks(4);
  config->set_sliding_window(1, 200);
  if (!succeeds([&] { sample.cache.reset(Cache::create(*config)); })) return sample;  // it wants codebooks
  sample.rows = noise(kTokens * kRow);
  const int64_t id = sample.cache->new_sequence();
  for (const int tokens : {150, kTokens - 150}) {
    for (int layer = 0; layer < kLayers; ++layer) {
      sample.cache->append(id, layer, sample.rows.data(), sample.rows.data(), tokens);
    }
  }
  const Owned<Saving> saving(Saving::create(*sample.cache, id));
  for (int64_t i = 0; i < saving->blocks(); ++i) {
    sample.images.push_back(
        written([&](uint8_t* out, int64_t room) { return saving->write_block(i, nullptr, out, room); }));
  }
  sample.images.push_back(written([&](uint8_t* out, int64_t room) { return saving->write_state(out, room); }));
  sample.cache->release(id);
  return sample;
}

const std::vector<Sample>& samples() {
  static const std::vector<Sample> all = [] {
    std::vector<Sample> made;
    for (int codec = 0; codec < codec_count(); ++codec) {
      Sample sample = make_sample(codec);
      if (!sample.images.empty()) made.push_back(std::move(sample));
    }
    return made;
  }();
  return all;
}

// CRC-32C, from its definition.
uint32_t crc32c(const uint8_t* bytes, size_t count) {
  static const std::vector<uint32_t> table = [] {
    std::vector<uint32_t> made;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t crc = byte;
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
      made.push_back(crc);
    }
    return made;
  }();
  uint32_t crc = ~0u;
  for (size_t i = 0; i < count; ++i) crc = crc >> 8 ^ table[(crc ^ bytes[i]) & 0xFF];
  return ~crc;
}

template <class T>
T number_at(const Bytes& image, size_t at) {
  T number;
  std::memcpy(&number, image.data() + at, sizeof number);
  return number;
}

// Checksums of what the table still says.
void mend(Bytes& image) {
  if (image.size() < 256) return;
  const auto put = [&](size_t at, uint32_t value) { std::memcpy(image.data() + at, &value, sizeof value); };
  const size_t parts = std::min<size_t>(number_at<uint32_t>(image, 32), (image.size() - 256) / 32);
  for (size_t i = 0; i < parts; ++i) {
    const size_t entry = 256 + 32 * i;
    const auto offset = number_at<uint64_t>(image, entry + 16), bytes = number_at<uint64_t>(image, entry + 24);
    if (offset <= image.size() && bytes <= image.size() - offset) {
      put(entry + 12, crc32c(image.data() + offset, bytes));
    }
  }
  put(36, crc32c(image.data() + 256, 32 * parts));
  put(40, 0);
  put(40, crc32c(image.data(), 256));
}

void use(const Sample& sample, int64_t id) {
  Cache& cache = *sample.cache;
  for (int layer = 0; layer < kLayers; ++layer) {
    std::vector<float> out(kRow);
    if (cache.length(id, layer) > 0) {
      succeeds([&] { cache.attend(layer, &id, 1, 1, sample.rows.data(), out.data()); });
      succeeds([&] { cache.read(id, layer, Side::kKeys, cache.length(id, layer) - 1, 1, out.data()); });
    }
    succeeds([&] { cache.append(id, layer, sample.rows.data(), sample.rows.data(), 140); });
  }
  succeeds([&] { cache.truncate(id, 100); });
  cache.release(id);
}

void run(Input& input) {
  const Sample& sample = samples()[static_cast<size_t>(input.pick(static_cast<int>(samples().size())))];
  std::vector<Bytes> images = sample.images;
  for (int edits = input.pick(6); edits > 0 && !input.ended(); --edits) {
    Bytes& image = images[static_cast<size_t>(input.pick(static_cast<int>(images.size())))];
    if (input.rarely()) image.resize(static_cast<size_t>(input.pick(static_cast<int>(image.size()) + 100)));
    if (image.empty()) continue;
    // Heads and tables matter most.
    const size_t reach = input.flip() ? image.size() : std::min<size_t>(image.size(), 700);
    const size_t at = static_cast<size_t>(input.byte() << 16 | input.byte() << 8 | input.byte()) % reach;
    for (int i = 1 + input.pick(8); i > 0 && at + static_cast<size_t>(i) <= image.size(); --i) {
      image[at + static_cast<size_t>(i) - 1] = static_cast<uint8_t>(input.byte());
    }
    if (!input.rarely()) mend(image);
  }
  const bool with_state = input.flip();
  int64_t id = 0;
  const bool restored = succeeds([&] {
    const Owned<Restoring> restoring(Restoring::create(*sample.cache));
    for (size_t i = 0; i + 1 < images.size(); ++i) {
      restoring->add_block(images[i].data(), static_cast<int64_t>(images[i].size()), nullptr);
    }
    if (with_state) restoring->set_state(images.back().data(), static_cast<int64_t>(images.back().size()));
    id = restoring->finish();
  });
  if (restored) use(sample, id);
  const Owned<CacheStats> stats(sample.cache->stats());
  require(stats->bytes() == 0 && stats->sequences() == 0, "what is refused or released leaves nothing behind");
}

}  // namespace
}  // namespace kvasir::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  kvasir::set_threads(1);  // what an input does must not depend on time
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvasir::fuzz::Input input(data, size);
  kvasir::fuzz::run(input);
  return 0;
}
