// Times attention on tiered keys with uniform values: microseconds, GB/s of the device's own layout, and the
// error of one query head against double. Then what sealing and decoding the pages of 32K tokens take.
//
//   tiered_bench [--kv-heads 8] [--group 4] [--contexts 8192,32768,131072] [--batches 1,16] [--value-bits 2,4]
//                [--n16 3] [--n4 20] [--key-group 32] [--value-group 32] [--json FILE]
//
// Head dim 128. n16 channels of a page have 16 bits and n4 have 4: by default 2.64 bits a key element, what a budget of
// 2.7 gives. Pages are random, 8 of them, over and over; launches go round enough copies of the batch that none finds
// its pages in the L2 cache.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstring>
#include <string>

#include "arguments.h"
#include "base/half.h"
#include "codecs/tiered/format.h"
#include "codecs/uniform/format.h"
#include "fill.cuh"
#include "json_rows.h"
#include "kernels/cuda/tiered/attend.h"
#include "kernels/cuda/tiered/rows.h"
#include "kernels/cuda/tiered/seal.h"
#include "launch_timing.h"
#include "paged_attention.h"

namespace {

using namespace kvasir::cuda;

constexpr int kDim = 128;
constexpr int kDistinct = 8;

struct Options {
  int kv_heads = 8, group = 4, n16 = 3, n4 = 20, key_group = 32, value_group = 32;
  std::vector<int> contexts = {8192, 32768, 131072}, batches = {1, 16}, value_bits = {2, 4};
  std::string json;
};

Options parse(int argc, char** argv) {
  Options options;
  bench::parse(argc, argv,
               {{"--kv-heads", &options.kv_heads},
                {"--group", &options.group},
                {"--contexts", &options.contexts},
                {"--batches", &options.batches},
                {"--json", &options.json},
                {"--n16", &options.n16},
                {"--n4", &options.n4},
                {"--key-group", &options.key_group},
                {"--value-group", &options.value_group},
                {"--value-bits", &options.value_bits}});
  return options;
}

uint16_t half_bits(float value) {
  const __half half = __float2half(value);
  uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}

class Batch {
 public:
  Batch(const Options& options, int value_bits, int context, int count)
      : options_(options), count_(count), pages_(context / kvasir::kPageTokens) {
    keys_.head_dim = values_.head_dim = kDim;
    keys_.group = options.key_group;
    values_.group = options.value_group;
    keys_.grid = kvasir::Grid::kCells;
    values_.grid = value_bits == 2 ? kvasir::Grid::kCells : kvasir::Grid::kEnds;
    values_.side = kvasir::Side::kValues;
    values_.bits = value_bits;
    values_.axis = kvasir::Axis::kToken;
    values_.page_bytes = kvasir::uniform::layout_of(values_).bytes;
    const TieredFormat format = tiered_format(keys_, values_);
    CUDA(plan_tiered({kDim, options.kv_heads, options.group, value_bits, count, format.key_group, format.value_group,
                      format.key_grid, format.value_grid},
                     &plan_));
    std::vector<std::vector<uint8_t>> pages;
    for (int i = 0; i < kDistinct; ++i) pages.push_back(make_page(i));
    const size_t page_bytes = pages[0].size();
    set_bytes_ = page_bytes * pages_ * count;
    sets_ = static_cast<int>(std::max<size_t>(2, (180u << 20) / set_bytes_ + 1));
    auto* const data = memory_.take<uint8_t>(set_bytes_ * sets_);
    std::vector<uint8_t> cycle;
    for (const auto& page : pages) cycle.insert(cycle.end(), page.begin(), page.end());
    for (size_t at = 0; at < set_bytes_ * sets_; at += cycle.size()) {
      CUDA(cudaMemcpy(data + at, at == 0 ? cycle.data() : data, std::min(cycle.size(), set_bytes_ * sets_ - at),
                      at == 0 ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToDevice));
    }
    for (size_t i = 0; i < static_cast<size_t>(count) * options.kv_heads * options.group * kDim; ++i) {
      queries_.push_back(1.5f * bench::unit(bench::hashed(i + 99)));
    }
    TieredRequest common = {};
    common.count = count;
    common.queries = memory_.copy(queries_);
    common.outputs = outputs_ = memory_.take<float>(queries_.size());
    common.type = kvasir::ElementType::kFloat32;
    common.softmax_scale = 1.0f / std::sqrt(static_cast<float>(kDim));
    common.workspace = memory_.take<uint8_t>(plan_.workspace_bytes);
    CUDA(clear_workspace(plan_, common.workspace, nullptr));
    for (const DeviceSequence* sequences : bench::sequence_sets(memory_, data, page_bytes, sets_, count, pages_)) {
      requests_.push_back(common);
      requests_.back().sequences = sequences;
    }
    CUDA(cudaDeviceSynchronize());
  }

  void launch(int i, cudaStream_t stream) const { CUDA(launch_tiered(plan_, requests_[i % sets_], stream)); }
  size_t bytes() const { return set_bytes_; }

  // How far the output of the last query head of the first sequence is off.
  double error() const {
    launch(0, nullptr);
    std::vector<float> outputs(queries_.size());
    CUDA(cudaMemcpy(outputs.data(), outputs_, 4 * outputs.size(), cudaMemcpyDeviceToHost));
    const size_t row = static_cast<size_t>(options_.kv_heads * options_.group - 1) * kDim;
    const auto at = [](const auto& rows, int64_t token) {
      return rows[token / kvasir::kPageTokens % kDistinct].data() + token % kvasir::kPageTokens * kDim;
    };
    return bench::output_error(
        queries_.data() + row, outputs.data() + row, kDim, int64_t{pages_} * kvasir::kPageTokens,
        [&](int64_t token) { return at(key_rows_, token); }, [&](int64_t token) { return at(value_rows_, token); });
  }

 private:
  // A page of random parts. The rows of its last kv head are kept.
  std::vector<uint8_t> make_page(int number) {
    uint64_t seed = static_cast<uint64_t>(number) << 32;
    const auto random = [&] { return bench::hashed(++seed); };
    std::vector<uint8_t> page(static_cast<size_t>(tiered_table_bytes(options_.kv_heads)), 0);
    for (int h = 0; h < options_.kv_heads; ++h) {
      const kvasir::tiered::Layout layout = kvasir::tiered::layout_of(keys_, options_.n16, options_.n4);
      std::vector<uint8_t> keys(layout.bytes, 0), values(values_.page_bytes, 0);
      for (uint8_t& byte : values) byte = static_cast<uint8_t>(random());
      for (size_t i = layout.wide_offset; i < layout.bytes; ++i) keys[i] = static_cast<uint8_t>(random());
      const uint16_t counts[2] = {static_cast<uint16_t>(options_.n16), static_cast<uint16_t>(options_.n4)};
      std::memcpy(keys.data(), counts, 4);
      for (int c = 0; c < kDim; ++c) keys[4 + c] = static_cast<uint8_t>(c * 37 % kDim);
      const auto parameters = [&](uint8_t* lo, uint8_t* range) {
        const float width = 2.0f + bench::unit(random());
        const uint16_t stored[2] = {half_bits(-0.5f * width + 0.2f * bench::unit(random())), half_bits(width)};
        std::memcpy(lo, &stored[0], 2);
        std::memcpy(range, &stored[1], 2);
      };
      for (int g = 0; g < layout.groups; ++g) {
        for (int c = 0; c < layout.columns; ++c) {
          parameters(keys.data() + layout.lo_offset(g) + 2 * c, keys.data() + layout.range_offset(g) + 2 * c);
        }
      }
      for (int i = 0; i < options_.n16; ++i) {
        for (int t = 0; t < 128; ++t) {
          const uint16_t bits = half_bits(2.0f * bench::unit(random()));
          std::memcpy(keys.data() + layout.value_offset(i) + 2 * t, &bits, 2);
        }
      }
      const kvasir::uniform::Layout plain = kvasir::uniform::layout_of(values_);
      for (int g = 0; g < plain.groups; ++g) {
        for (int t = 0; t < 128; ++t) {
          parameters(values.data() + plain.lo_offset(g) + 2 * t, values.data() + plain.range_offset(g) + 2 * t);
        }
      }
      const TieredBlock block = tiered_block(keys_, values_, keys.data());
      const TieredPlace place = {static_cast<uint32_t>(page.size()), counts[0], counts[1]};
      std::memcpy(page.data() + sizeof place * h, &place, sizeof place);
      page.resize(page.size() + static_cast<size_t>(block.bytes()));
      pack_tiered(keys_, values_, keys.data(), values.data(), page.data() + place.offset);
      if (h == options_.kv_heads - 1) keep_rows(layout, keys, plain, values);
    }
    return page;
  }

  void keep_rows(const kvasir::tiered::Layout& layout, const std::vector<uint8_t>& keys,
                 const kvasir::uniform::Layout& plain, const std::vector<uint8_t>& values) {
    const auto half_at = [](const std::vector<uint8_t>& bytes, size_t at) {
      uint16_t bits;
      std::memcpy(&bits, bytes.data() + at, 2);
      return kvasir::half_to_float(bits);
    };
    std::vector<float> key_rows(128 * kDim), value_rows(128 * kDim);
    for (int t = 0; t < 128; ++t) {
      for (int place = 0; place < kDim; ++place) {
        float& key = key_rows[t * kDim + keys[4 + place]];
        const int column = place - layout.n16, narrow = column - layout.n4;
        if (column < 0) {
          key = half_at(keys, layout.value_offset(place) + 2 * t);
        } else {
          const kvasir::tiered::Plane& plane = narrow < 0 ? layout.wide : layout.narrow;
          const size_t offset = narrow < 0 ? layout.wide_offset : layout.narrow_offset;
          const int in_plane = narrow < 0 ? column : narrow;
          const int parameter = narrow < 0 ? column : layout.wide.columns + narrow, levels = (1 << plane.bits) - 1;
          const int code = keys[offset + plane.byte_of(in_plane, t)] >> plane.bit_of(t) & levels;
          const int group = t / keys_.group;
          const float middle = narrow < 0 ? 0.0f : 0.5f;  // 2-bit codes are those of cells
          key = half_at(keys, layout.lo_offset(group) + 2 * parameter) +
                half_at(keys, layout.range_offset(group) + 2 * parameter) * (code + middle) / (levels + 2 * middle);
        }
      }
      for (int c = 0; c < kDim; ++c) {
        const float middle = values_.grid == kvasir::Grid::kCells ? 0.5f : 0.0f;
        const float range = half_at(values, plain.range_offset(c / values_.group) + 2 * t);
        value_rows[t * kDim + c] =
            half_at(values, plain.lo_offset(c / values_.group) + 2 * t) +
            range * (plain.get(values.data(), t, c) + middle) / ((1 << values_.bits) - 1 + 2 * middle);
      }
    }
    key_rows_.push_back(key_rows);
    value_rows_.push_back(value_rows);
  }

  const Options& options_;
  const int count_, pages_;
  int sets_ = 0;
  size_t set_bytes_ = 0;
  kvasir::PageFormat keys_, values_;
  TieredPlan plan_ = {};
  std::vector<std::vector<float>> key_rows_, value_rows_;
  std::vector<float> queries_;
  float* outputs_ = nullptr;
  std::vector<TieredRequest> requests_;
  bench::DeviceMemory memory_;
};

// Every channel has another range, so that thresholds and budgets find what to choose.
void time_pages(const Options& options, int value_bits) {
  constexpr int64_t kTokens = 32768, kPages = kTokens / kvasir::kPageTokens;
  bench::DeviceMemory memory;
  const size_t side = static_cast<size_t>(options.kv_heads) * kTokens * kDim;
  std::vector<uint16_t> rows;
  for (size_t i = 0; i < side; ++i) {
    rows.push_back(half_bits(bench::unit(bench::hashed(i)) * static_cast<float>(1 + i % kDim % 9)));
  }
  TieredSealRequest request = {};
  request.shape = {options.kv_heads, kDim};
  request.keys.head_dim = request.values.head_dim = kDim;
  request.keys.group = options.key_group;
  request.keys.numbers[kvasir::tiered::kMode] = kvasir::tiered::kBudget;
  request.keys.numbers[kvasir::tiered::kKeyBits] = 2.7f;
  request.values.group = options.value_group;
  request.values.bits = value_bits;
  request.values.side = kvasir::Side::kValues;
  request.values.axis = kvasir::Axis::kToken;
  request.staging = {{memory.copy(rows), memory.copy(rows)}, kTokens};
  request.page_count = kPages;
  const TierChoices choices =
      tier_choices(request.shape, kPages, memory.take<uint8_t>(tier_choice_bytes(request.shape, kPages)));
  CUDA(choose_tiers(request, choices, nullptr));
  std::vector<TierCounts> counts(static_cast<size_t>(kPages) * options.kv_heads);
  CUDA(cudaMemcpy(counts.data(), choices.counts, counts.size() * sizeof counts[0], cudaMemcpyDeviceToHost));
  std::vector<uint8_t*> pages;
  size_t written = 0;
  for (int64_t p = 0; p < kPages; ++p) {
    size_t bytes = static_cast<size_t>(tiered_table_bytes(options.kv_heads));
    for (int h = 0; h < options.kv_heads; ++h) {
      const TierCounts tiers = counts[static_cast<size_t>(p) * options.kv_heads + h];
      bytes +=
          static_cast<size_t>(tiered_block(tiered_format(request.keys, request.values), tiers.n16, tiers.n4).bytes());
    }
    pages.push_back(memory.take<uint8_t>(bytes));
    written += bytes;
  }
  const bench::Timing choosing =
      bench::time_launches([&](int, cudaStream_t stream) { CUDA(choose_tiers(request, choices, stream)); });
  const bench::Timing sealing = bench::time_launches(
      [&](int, cudaStream_t stream) { CUDA(seal_tiered_pages(request, choices, pages.data(), stream)); });
  const TieredRows decoding = {request.keys,     request.values,
                               options.kv_heads, memory.copy(pages),
                               kPages,           {memory.take<float>(side), memory.take<float>(side)}};
  const bench::Timing reading =
      bench::time_launches([&](int, cudaStream_t stream) { CUDA(launch_tiered_rows(decoding, stream)); });
  std::printf(
      "32768 tokens, values of %d bits: tiers %.1f us, sealing %.1f us (%.0f GB/s read + written), rows %.1f us\n",
      value_bits, choosing.us, sealing.us, static_cast<double>(4 * side + written) / sealing.us / 1000.0, reading.us);
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  bench::print_command(argc, argv);
  std::printf("\n%s, %d query heads, %d kv heads, head dim %d, channels of 16 / 4 / 2 bits: %d / %d / %d\n",
              bench::device_name().c_str(), options.kv_heads * options.group, options.kv_heads, kDim, options.n16,
              options.n4, kDim - options.n16 - options.n4);
  std::printf("%6s %8s %6s %10s %8s %8s %10s\n", "values", "context", "batch", "us", "GB/s", "spread", "nmse");
  bench::JsonRows rows(options.json);
  for (const int bits : options.value_bits) {
    for (const int batch_size : options.batches) {
      for (const int context : options.contexts) {
        const Batch batch(options, bits, context, batch_size);
        const bench::Timing timing = bench::time_launches([&](int i, cudaStream_t stream) { batch.launch(i, stream); });
        const double gbps = static_cast<double>(batch.bytes()) / timing.us / 1000.0;
        const double key_bits = 2.0 + (14.0 * options.n16 + 2.0 * options.n4) / kDim;
        rows.add(bits == 2 ? "tiered" : "tiered+4", key_bits, context, batch_size, timing.us, gbps);
        std::printf("%6d %8d %6d %10.2f %8.0f %7.1f%% %10.2e\n", bits, context, batch_size, timing.us, gbps,
                    100.0 * timing.spread, batch.error());
        std::fflush(stdout);
      }
    }
  }
  for (const int bits : options.value_bits) time_pages(options, bits);
  return 0;
}
