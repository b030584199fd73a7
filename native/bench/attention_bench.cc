// kvasir_bench: decode attention of every codec and width, next to the 16-bit codec in the same run.
//
// A step is one query token through one layer: 32 query heads, 8 kv heads, head dim 128 (Llama 3.1 8B). Each figure is
// the median over many steps. Steps take the layers of a cache in turn, as many as make --rotate megabytes of stored
// data, so that what a step reads has left the processor's caches. The outputs that were timed are checked.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "kvasir/kvasir.h"
#include "options.h"
#include "report.h"

namespace bench {
namespace {

using kvasir::Cache;
using kvasir::CacheConfig;
using kvasir::CacheStats;

constexpr int kQueryHeads = 32;
constexpr int kKvHeads = 8;
constexpr int kHeadDim = 128;
constexpr int kRow = kKvHeads * kHeadDim;
constexpr int kMaxLayers = 512;
constexpr int kHeadStride =
    9;  // of the 32 query heads, 0, 9, 18 and 27 are checked: four kv heads, four places in a group

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Width {
  int codec;
  int bits;
};

// f16 first, as the yardstick, then the registry in its order; narrowed by --codecs.
std::vector<Width> chosen_widths(const Options& options) {
  const auto wanted = [&](const std::string& name, int bits) {
    if (options.codecs.empty()) return true;
    for (const std::string& codec : options.codecs) {
      if (codec == name || codec == name + ":" + std::to_string(bits)) return true;
    }
    return false;
  };
  std::vector<Width> widths;
  for (int codec = 0; codec < kvasir::codec_count(); ++codec) {
    const std::string name = kvasir::codec_name(codec);
    if (name == "f16") widths.insert(widths.begin(), {codec, 16});
    for (int bits = 16; bits >= 1 && name != "f16"; --bits) {
      if (kvasir::codec_has_bits(codec, bits) && wanted(name, bits)) widths.push_back({codec, bits});
    }
  }
  return widths;
}

// Standard normal rows. Layers take their keys and values from different places of it, which costs less than new
// numbers.
class NormalRows {
 public:
  explicit NormalRows(int longest) : spare_(8191), rows_(static_cast<size_t>(longest + spare_) * kRow) {
    std::mt19937 generator(1);
    // Sums of bytes are close to normal, and quick to make.
    for (float& x : rows_) {
      const uint32_t a = generator(), b = generator();
      const int sum = static_cast<int>((a & 255) + (a >> 8 & 255) + (a >> 16 & 255) + (a >> 24) + (b & 255) +
                                       (b >> 8 & 255) + (b >> 16 & 255) + (b >> 24));
      x = static_cast<float>(sum - 1020) / 209.0f;  // eight bytes: standard deviation 73.9 * sqrt(8)
    }
  }
  const float* at(int number) const { return rows_.data() + static_cast<size_t>(number * 131 % spare_) * kRow; }

 private:
  const int spare_;
  std::vector<float> rows_;
};

// A cache whose layers all hold `context` tokens, and how fast they were appended.
struct Filled {
  std::unique_ptr<Cache, void (*)(Cache*)> cache{nullptr, Cache::destroy};
  int64_t sequence = 0;
  int layers = 0;
  double step_bytes = 0;  // stored bytes that one step reads
  double bits_per_element = 0;
  double append_gbps = 0;
};

Filled fill(const Options& options, const Width& width, int context, const NormalRows& data) {
  const auto create = [&](int layers) {
    const std::unique_ptr<CacheConfig, void (*)(CacheConfig*)> config(CacheConfig::create(layers),
                                                                      CacheConfig::destroy);
    config->set_heads(kvasir::kAllLayers, kQueryHeads, kKvHeads, kHeadDim);
    for (const kvasir::Side side : {kvasir::Side::kKeys, kvasir::Side::kValues}) {
      config->set_codec(kvasir::kAllLayers, side, kvasir::codec_name(width.codec), width.bits);
    }
    config->set_backend(options.backend.c_str());
    config->set_precision(options.fast ? kvasir::Precision::kFast : kvasir::Precision::kExact);
    return Cache::create(*config);
  };
  const auto append = [&](Filled& filled, int layer) {
    const double start = seconds_now();
    filled.cache->append(filled.sequence, layer, data.at(2 * layer), data.at(2 * layer + 1), context);
    return seconds_now() - start;
  };
  const auto layer_bytes = [&](Filled& filled) {
    const std::unique_ptr<CacheStats, void (*)(CacheStats*)> stats(filled.cache->stats(), CacheStats::destroy);
    filled.bits_per_element = stats->page_bits_per_element(0);
    const int window = context - static_cast<int>(stats->pages(0)) * kvasir::kPageTokens;
    return static_cast<double>(stats->page_bytes(0)) + 2.0 * window * kRow * sizeof(uint16_t);
  };

  Filled filled;
  filled.cache.reset(create(1));  // one layer, to see how much it takes
  filled.sequence = filled.cache->new_sequence();
  append(filled, 0);
  filled.step_bytes = layer_bytes(filled);
  filled.layers = static_cast<int>(std::ceil(static_cast<double>(options.rotate_mb) * 1e6 / filled.step_bytes));
  filled.layers = std::min(std::max(filled.layers, 2), kMaxLayers);
  filled.cache.reset(create(filled.layers));
  filled.sequence = filled.cache->new_sequence();
  double seconds = 0.0;
  for (int layer = 0; layer < filled.layers; ++layer) seconds += append(filled, layer);
  filled.append_gbps = 2.0 * filled.layers * context * kRow * sizeof(float) / seconds / 1e9;
  return filled;
}

// Times steps over all layers in turn and returns microseconds. `output` is what the last step on layer 0 gave.
std::vector<double> time_steps(const Options& options, const Filled& filled, const std::vector<float>& query,
                               std::vector<float>& output) {
  std::vector<double> samples;
  std::vector<float> scratch(query.size());
  const auto step = [&](int layer) {
    filled.cache->attend(layer, &filled.sequence, 1, 1, query.data(), layer == 0 ? output.data() : scratch.data());
  };
  for (int layer = 0; layer < std::min(filled.layers, 8); ++layer) step(layer);
  double total = 0.0;
  for (int layer = 0; total < options.seconds || samples.size() < 9; layer = (layer + 1) % filled.layers) {
    const double start = seconds_now();
    step(layer);
    const double taken = seconds_now() - start;
    samples.push_back(taken * 1e6);
    total += taken;
  }
  return samples;
}

void run(const Options& options) {
  const int all_threads = kvasir::threads();
  std::vector<int> thread_counts = options.threads;
  if (thread_counts.empty()) thread_counts = all_threads > 1 ? std::vector<int>{1, all_threads} : std::vector<int>{1};
  int longest = 0;
  for (const int context : options.contexts) longest = std::max(longest, context);
  const NormalRows data(longest);
  const std::vector<float> query(data.at(77), data.at(77) + kQueryHeads * kHeadDim);

  std::vector<Result> results;
  std::map<std::pair<int, int>, double> yardstick;  // microseconds of f16 by context and threads
  std::string backend;
  print_header();
  for (const Width& width : chosen_widths(options)) {
    for (const int context : options.contexts) {
      kvasir::set_threads(all_threads);
      const Filled filled = fill(options, width, context, data);
      const Shape shape{kQueryHeads, kKvHeads, kHeadDim, context};
      const auto expected = double_attention(*filled.cache, filled.sequence, 0, shape, query.data(), kHeadStride);
      for (const int threads : thread_counts) {
        kvasir::set_threads(threads);
        std::vector<float> output(query.size());
        std::vector<double> samples = time_steps(options, filled, query, output);
        const Errors errors = errors_of(expected, output.data(), shape);
        Result r{kvasir::codec_name(width.codec),
                 width.bits,
                 context,
                 threads,
                 quantile(samples, 0.5),
                 0,
                 0,
                 0,
                 errors.nmse,
                 errors.max_error,
                 filled.bits_per_element,
                 filled.append_gbps,
                 static_cast<int>(samples.size())};
        r.spread = (quantile(samples, 0.75) - quantile(samples, 0.25)) / 2 / r.us;
        r.gbps = filled.step_bytes / r.us / 1e3;
        yardstick.emplace(std::make_pair(context, threads), r.us);
        r.ratio16 = yardstick.at({context, threads}) / r.us;
        print_line(r);
        results.push_back(r);
      }
      const std::unique_ptr<CacheStats, void (*)(CacheStats*)> stats(filled.cache->stats(), CacheStats::destroy);
      backend = stats->backend();
      if (stats->fallback_tiles() > 0)
        std::printf("  (%s has no kernels for this codec; a lower level ran)\n", backend.c_str());
    }
  }

  std::printf("\nappend: float32 input, rounded, sealed and stored, on %d threads\n", all_threads);
  for (const Result& r : results) {
    if (r.context == longest && r.threads == thread_counts[0]) {
      std::printf("%-10s %4d bits %8.2f GB/s\n", r.codec.c_str(), r.bits, r.append_gbps);
    }
  }
  if (!options.json.empty()) write_json(options.json, results, backend, options.fast ? "fast" : "exact");
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  try {
    const bench::Options options = bench::parse(argc, argv);
    for (int i = 0; i < argc; ++i) std::printf("%s%s", i == 0 ? "" : " ", argv[i]);
    std::printf(
        "\nkvasir %s, backend %s, precision %s; 32 query heads, 8 kv heads, head dim 128; a step is one query "
        "token through one layer; %lld MB of layers in turn\n\n",
        kvasir::version(), options.backend == "auto" ? kvasir::default_backend() : options.backend.c_str(),
        options.fast ? "fast" : "exact", static_cast<long long>(options.rotate_mb));
    bench::run(options);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "kvasir_bench: " << error.what() << "\n" << bench::kUsage;
    return 2;
  }
}
