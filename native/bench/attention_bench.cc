// kvasir_bench: decode attention of every codec and width, next to the 16-bit codec in the same run.
//
// A step is one query token through one layer: 32 query heads, 8 kv heads, head dim 128 (Llama 3.1 8B). Each figure is
// the median over many steps. Steps take the layers of a cache in turn, as many as make --rotate megabytes of stored
// data, so that what a step reads has left the processor's caches. The outputs that were timed are checked.
//
// Codecs that mine patterns get rows with 32 clusters, so that pages have labels to follow; the others get normal rows,
// which cost them the same. Patterns are mined from the first 1024 tokens: attention does not care which they are.
// The tiered codec, which is for keys, runs at 2.7 bits a key beside 2-bit values.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "callers_bench.h"
#include "ceiling.h"
#include "check.h"
#include "commvq_bench.h"
#include "data.h"
#include "kvasir/kvasir.h"
#include "options.h"
#include "prompt_bench.h"
#include "report.h"
#include "saving_bench.h"
#include "sequence_bytes.h"
#include "shrink_bench.h"
#include "step_bench.h"
#include "summary.h"
#include "tier_bench.h"

namespace bench {
namespace {

using kvasir::Cache;
using kvasir::CacheConfig;
using kvasir::CacheStats;

constexpr int kMaxLayers = 512;
constexpr int kTrainedLayers = 2;
constexpr int kMinedTokens = 1024;
// Matching takes longer than all that is measured: codecs that do it get fewer layers, and two widths unless more are
// named.
constexpr int kMaxPatternTokens = 4 * 32768;
constexpr int kPatternWidths[] = {2, 4};
constexpr int kClusters = 32;
constexpr int kHeadStride =
    9;  // of the 32 query heads, 0, 9, 18 and 27 are checked: four kv heads, four places in a group

struct Width {
  int codec;
  int bits;
};

int codec_named(const std::string& name) {
  int codec = 0;
  while (kvasir::codec_name(codec) != name) ++codec;
  return codec;
}

// Codecs that are measured at every context; the others, which share their kernels, at the longest alone.
bool is_baseline(int codec) { return codec == codec_named("f16") || codec == codec_named("uniform"); }

bool is_default(int codec, int bits) {
  return !has_patterns(codec) || std::count(std::begin(kPatternWidths), std::end(kPatternWidths), bits) > 0;
}

// f16 first, as the yardstick, then the registry in its order, widest first; narrowed by --codecs.
std::vector<Width> chosen_widths(const Options& options) {
  std::set<std::string> unknown(options.codecs.begin(), options.codecs.end());
  std::vector<Width> widths;
  for (int codec = 0; codec < kvasir::codec_count(); ++codec) {
    const std::string name = kvasir::codec_name(codec);
    for (int bits = 16; bits >= 1; --bits) {
      if (!kvasir::codec_has_bits(codec, bits)) continue;
      const bool by_name = std::count(options.codecs.begin(), options.codecs.end(), name) > 0;
      const std::string exact = name + ":" + std::to_string(bits);
      const bool by_width = std::count(options.codecs.begin(), options.codecs.end(), exact) > 0;
      unknown.erase(name);
      unknown.erase(exact);
      if (name == "f16") {
        widths.insert(widths.begin(), {codec, bits});
      } else if (by_name || by_width || (options.codecs.empty() && is_default(codec, bits))) {
        widths.push_back({codec, bits});
      }
    }
  }
  if (!unknown.empty()) throw std::invalid_argument("no codec " + *unknown.begin());
  return widths;
}

// A cache whose layers all hold `context` tokens, and how fast they were appended.
struct Filled {
  std::unique_ptr<Cache, void (*)(Cache*)> cache{nullptr, Cache::destroy};
  int64_t sequence = 0;
  int layers = 0;
  double step_bytes = 0;  // stored bytes that one step reads
  double bits_per_element = 0;
  double append_gbps = 0;
};

Filled fill(const Options& options, const Width& width, int context, const Rows& data) {
  const bool patterns = has_patterns(width.codec);
  const bool tiers = goes_by_queries(width.codec);
  const std::vector<float> shown = uneven_query();
  const auto create = [&](int layers) {
    const std::unique_ptr<CacheConfig, void (*)(CacheConfig*)> config(CacheConfig::create(layers),
                                                                      CacheConfig::destroy);
    config->set_heads(kvasir::kAllLayers, kQueryHeads, kKvHeads, kHeadDim);
    if (tiers) choose_tiers(*config);
    if (has_basis(width.codec)) add_basis(*config);
    for (const kvasir::Side side : {kvasir::Side::kKeys, kvasir::Side::kValues}) {
      if (tiers) continue;
      config->set_codec(kvasir::kAllLayers, side, kvasir::codec_name(width.codec), width.bits);
      if (patterns) config->set_option(kvasir::kAllLayers, side, "new_patterns", 0);
    }
    config->set_backend(options.backend.c_str());
    config->set_precision(options.fast ? kvasir::Precision::kFast : kvasir::Precision::kExact);
    return Cache::create(*config);
  };
  const auto append = [&](Filled& filled, int layer) {
    const float* keys = data.at(2 * layer);
    const float* values = data.at(2 * layer + 1);
    const int first = patterns ? std::min(context, kMinedTokens) : context;
    if (tiers) filled.cache->observe(layer, &filled.sequence, 1, 1, shown.data());
    const double start = seconds_now();
    filled.cache->append(filled.sequence, layer, keys, values, first);
    if (context > first) {
      const size_t done = static_cast<size_t>(first) * kRow;
      filled.cache->append(filled.sequence, layer, keys + done, values + done, context - first);
    }
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
  filled.layers = std::min(std::max(filled.layers, 2), patterns ? kMaxPatternTokens / context : kMaxLayers);
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

// What a step is made of. Codes are multiplied as bytes, 16-bit ones as two; exact mode splits the other factor into
// two bytes as well.
Work work_of(const Options& options, const Width& width, const Filled& filled, int context) {
  const double products = 2.0 * context * kRow * kQueryHeads / kKvHeads;
  Work work;
  work.bytes = filled.step_bytes;
  if (width.codec == codec_named("f16")) {
    work.float_products = products;
  } else {
    work.byte_products = products * (options.fast ? 1 : 2) * (width.bits == 16 ? 2 : 1);
  }
  return work;
}

// How much longer a step takes with a codec than with the uniform one: the two in turn, so that both see the same
// machine.
void time_ratio(const Options& options, const std::string& codec, int bits, int context, const Rows& data,
                const std::vector<float>& query) {
  const Filled other = fill(options, {codec_named(codec), bits}, context, data);
  const Filled uniform = fill(options, {codec_named("uniform"), bits}, context, data);
  std::vector<float> output(query.size());
  const auto step = [&](const Filled& filled, int number) {
    const double start = seconds_now();
    filled.cache->attend(number % filled.layers, &filled.sequence, 1, 1, query.data(), output.data());
    return seconds_now() - start;
  };
  std::vector<double> with, without, ratios;
  double total = 0.0;
  for (int i = 0; total < 2 * options.seconds || ratios.size() < 31; ++i) {
    with.push_back(step(other, i));
    without.push_back(step(uniform, i));
    ratios.push_back(with.back() / without.back());
    total += with.back() + without.back();
  }
  std::printf(
      "%s-%d / uniform-%d: %.2f times the time (median of pairs; %.2f by the fastest) at %d tokens, %d threads\n",
      codec.c_str(), bits, bits, quantile(ratios, 0.5), quantile(with, 0.0) / quantile(without, 0.0), context,
      kvasir::threads());
}

void run(const Options& options) {
  const int all_threads = kvasir::threads();
  std::vector<int> thread_counts = options.threads;
  if (thread_counts.empty()) thread_counts = all_threads > 1 ? std::vector<int>{1, all_threads} : std::vector<int>{1};
  int longest = 0;
  for (const int context : options.contexts) longest = std::max(longest, context);
  const std::vector<Width> widths = chosen_widths(options);
  const Rows data(longest, 0);
  const bool clustered =
      std::any_of(widths.begin(), widths.end(), [](const Width& w) { return has_patterns(w.codec); });
  const Rows clusters(clustered ? std::max(longest, kPromptTokens) : 0, kClusters);
  const std::vector<float> query(data.at(77), data.at(77) + kQueryHeads * kHeadDim);

  std::map<int, Machine> machines;  // by threads
  std::printf("this machine, measured:\n");
  Machine::print_header();
  for (const int threads : thread_counts) {
    const auto added = machines.try_emplace(
        threads, options.backend == "auto" ? kvasir::default_backend() : options.backend, options.rotate_mb, threads);
    added.first->second.print();
  }
  std::printf("\n");
  const auto set_ceiling = [&](Result& r, const Work& work) {
    const Ceiling ceiling = machines.at(r.threads).ceiling(work);
    r.ceiling_us = 1e6 * ceiling.seconds;
    r.by_memory = ceiling.by_memory;
  };

  std::vector<Result> results;
  std::map<std::pair<int, int>, double> yardstick;  // microseconds of f16 by context and threads
  std::string backend, callers;
  print_header();
  bool trained = false;
  for (const Width& width : widths) {
    if (kvasir::codec_is_trained(width.codec)) {
      trained = true;  // needs codebooks: commvq_bench.h
      continue;
    }
    for (const int context : options.contexts) {
      if (context != longest && !is_baseline(width.codec)) continue;
      kvasir::set_threads(all_threads);
      const Filled filled = fill(options, width, context, has_patterns(width.codec) ? clusters : data);
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
        set_ceiling(r, work_of(options, width, filled, context));
        print_line(r);
        results.push_back(r);
      }
      if (width.codec == codec_named("uniform") && width.bits == 2 && context == longest) {
        for (const int threads : thread_counts) {
          kvasir::set_threads(threads);
          callers += time_callers(options, "uniform-2", *filled.cache, filled.sequence, filled.layers, longest,
                                  std::max(2, all_threads), query);
        }
      }
      const std::unique_ptr<CacheStats, void (*)(CacheStats*)> stats(filled.cache->stats(), CacheStats::destroy);
      backend = stats->backend();
      if (stats->fallback_tiles() > 0)
        std::printf("  (%s has no kernels for this codec; a lower level ran)\n", backend.c_str());
    }
  }

  std::printf("\n%s", callers.c_str());
  std::printf("\nappend: float32 input, rounded, sealed and stored, on %d threads\n", all_threads);
  for (const Result& r : results) {
    if (r.context == longest && r.threads == thread_counts[0]) {
      std::printf("%-10s %4d bits %8.2f GB/s\n", r.codec.c_str(), r.bits, r.append_gbps);
    }
  }
  if (clustered) {
    std::printf("\n");
    for (const int threads : thread_counts) {
      kvasir::set_threads(threads);
      time_ratio(options, "pattern", 2, longest, clusters, query);
    }
    kvasir::set_threads(all_threads);
    time_kmeans(options);
    for (const char* codec : {"pattern", "uniform"}) time_prompt(options, codec, 2, clusters);
  }
  const bool progressive =
      std::any_of(widths.begin(), widths.end(), [](const Width& w) { return w.codec == codec_named("progressive"); });
  if (progressive) {
    kvasir::set_threads(all_threads);
    time_progressive(options, data, longest);
  }
  const bool tiers = std::any_of(widths.begin(), widths.end(), [](const Width& w) { return goes_by_queries(w.codec); });
  if (tiers) {
    std::printf("\n");
    kvasir::set_threads(1);
    time_ratio(options, "tiered", 2, longest, data, query);
    time_choices(options, data, query);
    kvasir::set_threads(all_threads);
  }
  if (std::any_of(widths.begin(), widths.end(), [](const Width& w) { return has_basis(w.codec); })) {
    std::printf("\n");
    kvasir::set_threads(1);
    time_ratio(options, "spectral", 2, longest, data, query);
    kvasir::set_threads(all_threads);
  }
  if (trained) {
    kvasir::set_threads(all_threads);
    const CommVqLayers filled(options, kTrainedLayers, data, longest);
    std::printf("\n");
    for (const int threads : thread_counts) {
      kvasir::set_threads(threads);
      Result r = time_commvq(options, filled, longest, yardstick.at({longest, threads}), query);
      set_ceiling(r, commvq_work(longest, options.fast));
      results.push_back(r);
    }
    kvasir::set_threads(all_threads);
    std::printf("commvq-1 encoding, one layer: %.0f tokens/s on %d threads\n", filled.tokens_per_second(), all_threads);
    time_key_training();
  }
  print_sequence_bytes(options.backend);
  print_step_times(options.backend);
  print_saving_times(options);
  print_summary(results, options.contexts, thread_counts);
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
        "token through one layer; %d MB of layers in turn\n\n",
        kvasir::version(), options.backend == "auto" ? kvasir::default_backend() : options.backend.c_str(),
        options.fast ? "fast" : "exact", options.rotate_mb);
    bench::run(options);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "kvasir_bench: " << error.what() << "\n" << bench::kUsage;
    return 2;
  }
}
