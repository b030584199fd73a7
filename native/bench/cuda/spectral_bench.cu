// Times attention on spectral pages: microseconds, GB/s of pages, and the error of one query head against double over
// the rows that pages decode to. Then what sealing and decoding the pages of 32K tokens take.
//
//   spectral_bench [--kv-heads 8] [--group 4] [--contexts 8192,32768,131072] [--batches 1,16] [--code-bits 2]
//                  [--json FILE]
//
// Head dim 128, a basis for each kv head and side. Pages are of rows whose channels spread over six octaves, 8 of them,
// over and over; launches go round enough copies of the batch that none finds its pages in the L2 cache.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "arguments.h"
#include "base/half.h"
#include "codecs/basis.h"
#include "codecs/spectral/format.h"
#include "fill.cuh"
#include "json_rows.h"
#include "kernels/cuda/spectral/attend.h"
#include "kernels/cuda/spectral/inverse_fragments.h"
#include "kernels/cuda/spectral/rows.h"
#include "kernels/cuda/spectral/seal.h"
#include "launch_timing.h"
#include "paged_attention.h"

namespace {

using namespace kvasir::cuda;
using kvasir::kPageTokens;
using kvasir::Side;

constexpr int kDim = 128;
constexpr int kDistinct = 8;

struct Options {
  int kv_heads = 8, group = 4, code_bits = 2;
  std::vector<int> contexts = {8192, 32768, 131072}, batches = {1, 16};
  std::string json;
};

Options parse(int argc, char** argv) {
  Options options;
  bench::parse(argc, argv,
               {{"--kv-heads", &options.kv_heads},
                {"--group", &options.group},
                {"--contexts", &options.contexts},
                {"--batches", &options.batches},
                {"--code-bits", &options.code_bits},
                {"--json", &options.json}});
  return options;
}

// [kv_heads][tokens][kDim] of float16 numbers.
std::vector<uint16_t> uneven_rows(int kv_heads, int64_t tokens, uint64_t seed) {
  std::vector<uint16_t> rows;
  for (int64_t i = 0; i < kv_heads * tokens * kDim; ++i) {
    const float spread = std::exp2(-6.0f * static_cast<float>(i % kDim) / kDim);
    rows.push_back(kvasir::float_to_half(spread * bench::unit(bench::hashed(seed + static_cast<uint64_t>(i)))));
  }
  return rows;
}

// Both sides' formats and bases on the device.
struct Sides {
  kvasir::PageFormat formats[2];
  std::shared_ptr<const kvasir::Basis> basis;
  const float* vectors;
  SealBasis sealing;
  const uint16_t* halves;

  Sides(const Options& options, bench::DeviceMemory& memory) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      kvasir::PageFormat& format = formats[static_cast<int>(side)];
      format.side = side;
      format.bits = options.code_bits;
      format.head_dim = kDim;
      format.heads = options.kv_heads;
      format.numbers[kvasir::spectral::kTileBits] =
          static_cast<float>(options.code_bits * kDim / kvasir::spectral::kTile);
      format.page_bytes = kvasir::spectral::layout_of(format).bytes * static_cast<size_t>(options.kv_heads);
    }
    std::vector<float> made;
    for (int i = 0; i < options.kv_heads * kDim * kDim; ++i) {
      made.push_back((i % kDim == i / kDim % kDim ? 1.0f : 0.0f) +
                     0.02f * bench::unit(bench::hashed(static_cast<uint64_t>(i) + 7)));
    }
    basis = kvasir::Basis::make(made.data(), options.kv_heads, kDim);
    std::vector<float> forth(basis->vectors(0), basis->vectors(0) + made.size());
    std::vector<uint16_t> rounded;
    for (const float x : forth) rounded.push_back(kvasir::float_to_half(x));
    vectors = memory.copy(forth);
    sealing.inverse = memory.copy(inverse_fragments(*basis));
    sealing.units = memory.copy(std::vector<float>(basis->units(0), basis->units(0) + options.kv_heads * kDim));
    halves = memory.copy(rounded);
  }
  size_t page_bytes() const { return (formats[0].page_bytes + formats[1].page_bytes + 127) / 128 * 128; }
  // All pages of these rows: a page every page_bytes().
  void seal(const Staging& staging, uint8_t* pages, int64_t count, cudaStream_t stream) const {
    for (int side = 0; side < 2; ++side) {
      std::vector<uint8_t*> parts;
      for (int64_t p = 0; p < count; ++p) parts.push_back(pages + p * page_bytes() + side * formats[0].page_bytes);
      CUDA(seal_spectral_parts({formats[side], sealing, staging, parts.data(), count}, stream));
    }
  }
};

class Batch {
 public:
  Batch(const Options& options, int context, int count)
      : options_(options), pages_(context / kPageTokens), sides_(options, memory_) {
    SpectralShape shape = {kDim, options.kv_heads, options.group, count, {}, 0};
    for (int side = 0; side < 2; ++side) shape.layouts[side] = kvasir::spectral::layout_of(sides_.formats[side]);
    shape.value_offset = static_cast<int64_t>(sides_.formats[0].page_bytes);
    CUDA(plan_spectral(shape, &plan_));
    const size_t page_bytes = sides_.page_bytes();
    set_bytes_ = page_bytes * pages_ * count;
    sets_ = static_cast<int>(std::max<size_t>(2, (180u << 20) / set_bytes_ + 1));
    auto* const data = memory_.take<uint8_t>(std::max(set_bytes_ * sets_, page_bytes * kDistinct));
    const int64_t tokens = kDistinct * kPageTokens;
    const Staging staging = {{memory_.copy(uneven_rows(options.kv_heads, tokens, 1)),
                              memory_.copy(uneven_rows(options.kv_heads, tokens, 2))},
                             tokens};
    sides_.seal(staging, data, kDistinct, nullptr);
    keep_rows(data, page_bytes);
    for (size_t at = page_bytes * kDistinct; at < set_bytes_ * sets_; at += page_bytes * kDistinct) {
      CUDA(cudaMemcpy(data + at, data, std::min(page_bytes * kDistinct, set_bytes_ * sets_ - at),
                      cudaMemcpyDeviceToDevice));
    }
    for (size_t i = 0; i < static_cast<size_t>(count) * options.kv_heads * options.group * kDim; ++i) {
      queries_.push_back(1.5f * bench::unit(bench::hashed(i + 99)));
    }
    SpectralRequest common = {};
    common.count = count;
    common.queries = memory_.copy(queries_);
    common.outputs = outputs_ = memory_.take<float>(queries_.size());
    common.type = kvasir::ElementType::kFloat32;
    common.softmax_scale = 1.0f / std::sqrt(static_cast<float>(kDim));
    common.workspace = memory_.take<uint8_t>(plan_.workspace_bytes);
    common.vectors[0] = common.vectors[1] = sides_.halves;
    CUDA(clear_workspace(plan_, common.workspace, nullptr));
    // Page p of sequence s of a set is distinct page (set, s, p) % kDistinct.
    for (const DeviceSequence* sequences : bench::sequence_sets(memory_, data, page_bytes, sets_, count, pages_)) {
      requests_.push_back(common);
      requests_.back().sequences = sequences;
    }
    CUDA(cudaDeviceSynchronize());
  }

  void launch(int i, cudaStream_t stream) const { CUDA(launch_spectral(plan_, requests_[i % sets_], stream)); }
  size_t bytes() const { return set_bytes_; }

  // How far the output of the last query head of the first sequence is off.
  double error() const {
    launch(0, nullptr);
    std::vector<float> outputs(queries_.size());
    CUDA(cudaMemcpy(outputs.data(), outputs_, 4 * outputs.size(), cudaMemcpyDeviceToHost));
    const size_t row = static_cast<size_t>(options_.kv_heads * options_.group - 1) * kDim;
    const auto at = [&](int side, int64_t token) {
      return rows_[side].data() + (static_cast<int64_t>(options_.kv_heads - 1) * kDistinct * kPageTokens +
                                   token % (kDistinct * kPageTokens)) *
                                      kDim;
    };
    return bench::output_error(
        queries_.data() + row, outputs.data() + row, kDim, int64_t{pages_} * kPageTokens,
        [&](int64_t token) { return at(0, token); }, [&](int64_t token) { return at(1, token); });
  }

 private:
  void keep_rows(uint8_t* data, size_t page_bytes) {
    std::vector<const uint8_t*> pages;
    for (int p = 0; p < kDistinct; ++p) pages.push_back(data + p * page_bytes);
    const uint8_t* const* table = memory_.copy(pages);
    for (int side = 0; side < 2; ++side) {
      rows_[side].resize(static_cast<size_t>(options_.kv_heads) * kDistinct * kPageTokens * kDim);
      auto* const out = memory_.take<float>(rows_[side].size());
      const RowUnpacking unpacking = {table, kDistinct,
                                      side == 0 ? 0 : static_cast<int64_t>(sides_.formats[0].page_bytes), out};
      CUDA(launch_spectral_rows(sides_.formats[side], sides_.vectors, unpacking, nullptr));
      CUDA(cudaMemcpy(rows_[side].data(), out, 4 * rows_[side].size(), cudaMemcpyDeviceToHost));
    }
  }

  const Options& options_;
  const int pages_;
  bench::DeviceMemory memory_;
  const Sides sides_;
  int sets_ = 0;
  size_t set_bytes_ = 0;
  SpectralPlan plan_ = {};
  std::vector<float> rows_[2];  // of the distinct pages
  std::vector<float> queries_;
  float* outputs_ = nullptr;
  std::vector<SpectralRequest> requests_;
};

void time_pages(const Options& options) {
  constexpr int64_t kTokens = 32768, kPages = kTokens / kPageTokens;
  bench::DeviceMemory memory;
  const Sides sides(options, memory);
  const Staging staging = {
      {memory.copy(uneven_rows(options.kv_heads, kTokens, 1)), memory.copy(uneven_rows(options.kv_heads, kTokens, 2))},
      kTokens};
  auto* const data = memory.take<uint8_t>(sides.page_bytes() * kPages);
  const bench::Timing sealing =
      bench::time_launches([&](int, cudaStream_t stream) { sides.seal(staging, data, kPages, stream); });
  std::vector<const uint8_t*> pages;
  for (int64_t p = 0; p < kPages; ++p) pages.push_back(data + p * sides.page_bytes());
  const RowUnpacking unpacking = {memory.copy(pages), kPages, 0,
                                  memory.take<float>(static_cast<size_t>(options.kv_heads) * kTokens * kDim)};
  const bench::Timing reading = bench::time_launches([&](int, cudaStream_t stream) {
    CUDA(launch_spectral_rows(sides.formats[0], sides.vectors, unpacking, stream));
  });
  std::printf("32768 tokens: sealing both sides %.1f us, rows of one side %.1f us\n", sealing.us, reading.us);
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  bench::print_command(argc, argv);
  std::printf("\n%s, %d query heads, %d kv heads, head dim %d, %d code bits\n", bench::device_name().c_str(),
              options.kv_heads * options.group, options.kv_heads, kDim, options.code_bits);
  std::printf("%8s %6s %10s %8s %8s %10s\n", "context", "batch", "us", "GB/s", "spread", "nmse");
  bench::JsonRows rows(options.json);
  for (const int batch_size : options.batches) {
    for (const int context : options.contexts) {
      const Batch batch(options, context, batch_size);
      const bench::Timing timing = bench::time_launches([&](int i, cudaStream_t stream) { batch.launch(i, stream); });
      const double gbps = static_cast<double>(batch.bytes()) / timing.us / 1000.0;
      rows.add("spectral", options.code_bits, context, batch_size, timing.us, gbps);
      std::printf("%8d %6d %10.2f %8.0f %7.1f%% %10.2e\n", context, batch_size, timing.us, gbps, 100.0 * timing.spread,
                  batch.error());
      std::fflush(stdout);
    }
  }
  time_pages(options);
  return 0;
}
