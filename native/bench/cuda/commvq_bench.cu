// Times attention on CommVQ's pages: microseconds, and the error of one query head against double.
//
//   commvq_bench [--kv-heads 8] [--group 4] [--head-dim 128] [--contexts 8192,32768,131072] [--batches 1]
//                [--stages 11,22] [--fast 0,1] [--wide 0] [--trained 0] [--check 1] [--generic 0] [--json FILE]
//
// --wide N: N stages have an entry eight times as large as the others are, as tables trained elsewhere have them, so
// that fast tables need a second plane for each of these stages. --trained 1: entries are bytes, but for those of the
// first stage, as the library trains them. Stages of 64 entries; as many rows in the value codebook as the keys have
// bits, to the nearest whole bit. Pages and tables are random; launches go round enough copies of the batch
// that none finds its pages in the L2 cache. The last columns are the three kernels of a launch, each on its own. The
// check in double takes seconds; --check 0 leaves it out. --generic 1: kernels that run everywhere, even where there
// are faster ones.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "arguments.h"
#include "base/half.h"
#include "fill.cuh"
#include "json_rows.h"
#include "kernels/cuda/commvq/attend.h"
#include "kernels/cuda/commvq/params.h"
#include "launch_timing.h"

namespace {

using namespace kvasir::cuda;

struct Options {
  int kv_heads = 8, group = 4, head_dim = 128, check = 1, generic = 0, trained = 0;
  std::vector<int> contexts = {8192, 32768, 131072}, batches = {1}, stages = {11, 22}, fast = {0, 1}, wide = {0};
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
                {"--head-dim", &options.head_dim},
                {"--check", &options.check},
                {"--generic", &options.generic},
                {"--stages", &options.stages},
                {"--fast", &options.fast},
                {"--wide", &options.wide},
                {"--trained", &options.trained}});
  return options;
}

// Random words, but for the norms and gains at the beginning of both parts: 0.5 .. 1.5.
__global__ void fill_pages(uint32_t* words, int64_t count, int64_t page_words, int64_t value_word, uint64_t seed) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    const int64_t in_page = i % page_words;
    uint32_t word = bench::hashed(seed + static_cast<uint64_t>(i));
    if (in_page < 64 || (in_page >= value_word && in_page < value_word + 64)) {
      const __half2 pair = __floats2half2_rn(1.0f + 0.5f * bench::unit(word), 1.0f + 0.5f * bench::unit(word * 77u));
      memcpy(&word, &pair, 4);
    }
    words[i] = word;
  }
}

class Model : public kvasir::commvq::KeyModel {
 public:
  Model(const Options& options, int stage_count, int wide)
      : memory(static_cast<size_t>(options.kv_heads) * options.head_dim * stage_count * 64) {
    page = {options.kv_heads, stage_count, 6};
    head_dim = options.head_dim;
    entries = 64;
    pairs = kvasir::RopePairs::kHalves;
    for (size_t i = 0; i < memory.size(); ++i) {
      // [kv head][chunk][stage][entry][chunk's channels]
      const size_t row = i / kvasir::commvq::kChunk, stage = row / entries % page.stages;
      const float size = row % entries == 0 && stage < static_cast<size_t>(wide) ? 8.0f : 1.0f;
      float entry = size * 1.7f * bench::unit(bench::hashed(i)) / std::sqrt(2.0f * stage_count);
      if (options.trained != 0) {
        const float unit = stage == 0 ? 0x1p-11f : 0x1p-7f;
        entry = (stage == 0 ? 4.0f : 1.0f) * std::nearbyint(entry / unit) * unit;
      }
      const __half half = __float2half(entry);
      std::memcpy(&memory[i], &half, 2);
    }
    tables = memory.data();
  }
  void encode(const float*, uint8_t*) const override {}
  void decode(const uint8_t*, float*) const override {}
  void content(uint8_t (&)[32]) const override {}
  Codebook codebook() const override { return {}; }
  std::vector<uint16_t> memory;
};

class Batch {
 public:
  Batch(const Options& options, int stages, bool fast, int wide, int context, int count)
      : options_(options), model_(options, stages, wide), count_(count), pages_(context / kvasir::kPageTokens) {
    const int d = options.head_dim, width = options.kv_heads * d;
    codes_ = static_cast<int>(std::lround(12.0 * stages / d)) * width;
    KeyTableLayout layout;
    CUDA(plan_key_tables(model_, fast ? KeyPrecision::kFast : KeyPrecision::kExact, &layout));
    for (int j = 0; j < d / 2; ++j) frequencies_.push_back(std::pow(500000.0, -2.0 * j / d));
    std::vector<uint8_t> tables(layout.bytes());
    pack_key_tables(model_, layout, frequencies_.data(), 1.0, tables.data());
    CUDA(plan_commvq({layout, model_.pairs, options.group, codes_, count, static_cast<int64_t>(pages_) * count,
                      options.generic != 0},
                     &plan_));
    value_offset_ = model_.page.bytes();
    page_bytes_ = value_offset_ + 256 + static_cast<size_t>(codes_) * 16;
    set_bytes_ = page_bytes_ * pages_ * count;
    sets_ = static_cast<int>(std::max<size_t>(2, (180u << 20) / set_bytes_ + 1));
    data_ = memory_.take<uint8_t>(set_bytes_ * sets_);
    fill_pages<<<2048, 256>>>(reinterpret_cast<uint32_t*>(data_), static_cast<int64_t>(set_bytes_ * sets_ / 4),
                              static_cast<int64_t>(page_bytes_ / 4), static_cast<int64_t>(value_offset_ / 4), 5);
    CUDA(cudaGetLastError());
    for (int set = 0; set < sets_; ++set) {
      std::vector<CommVqSequence> sequences;
      for (int s = 0; s < count; ++s) {
        std::vector<const uint8_t*> table;
        for (int p = 0; p < pages_; ++p) table.push_back(data_ + set * set_bytes_ + (s * pages_ + p) * page_bytes_);
        CommVqSequence sequence = {};
        sequence.pages = memory_.copy(table);
        sequence.page_count = pages_;
        sequences.push_back(sequence);
      }
      requests_.push_back({});
      requests_.back().sequences = memory_.copy(sequences);
    }
    for (size_t i = 0; i < static_cast<size_t>(count) * width * options.group; ++i) {
      queries_.push_back(1.7f * bench::unit(bench::hashed(i + 99)));
    }
    for (size_t i = 0; i < static_cast<size_t>(codes_) * width; ++i) {
      const __half half = __float2half(bench::unit(bench::hashed(i + 12345)));
      uint16_t bits;
      std::memcpy(&bits, &half, 2);
      value_table_.push_back(bits);
    }
    CommVqRequest common = {};
    common.count = count;
    common.queries = memory_.copy(queries_);
    common.outputs = outputs_ = memory_.take<float>(queries_.size());
    common.type = kvasir::ElementType::kFloat32;
    common.softmax_scale = 1.0f / std::sqrt(static_cast<float>(d));
    common.key_tables = memory_.copy(tables);
    common.value_tables = memory_.copy(value_table_);
    common.workspace = memory_.take<uint8_t>(plan_.workspace_bytes);
    CUDA(clear_workspace(plan_, common.workspace, nullptr));
    for (CommVqRequest& request : requests_) {
      const CommVqSequence* sequences = request.sequences;
      request = common;
      request.sequences = sequences;
    }
    CUDA(cudaDeviceSynchronize());
  }

  void launch(int i, cudaStream_t stream) const { CUDA(launch_commvq(plan_, requests_[i % sets_], stream)); }
  size_t bytes() const { return set_bytes_; }
  int planes() const { return plan_.shape.tables.planes + plan_.shape.tables.low_planes; }
  // One of the three kernels alone, over what an earlier launch left in the workspace.
  void launch_part(int part, int i, cudaStream_t stream) const {
    const CommVqParams params = params_of(plan_, requests_[i % sets_]);
    CUDA(part == 0   ? launch_scores(params, plan_.score_blocks, plan_.score_shared, stream)
         : part == 1 ? launch_values(params, stream)
                     : launch_merge(params, stream));
  }

  // How far the output of the last query head of the last sequence is off.
  double error() const {
    launch(0, nullptr);
    const int d = options_.head_dim, half = d / 2, heads = options_.kv_heads, stages = model_.page.stages;
    std::vector<float> outputs(queries_.size());
    CUDA(cudaMemcpy(outputs.data(), outputs_, 4 * outputs.size(), cudaMemcpyDeviceToHost));
    const float* query = queries_.data() + queries_.size() - d;
    std::vector<double> scores, gains;
    std::vector<uint8_t> page(page_bytes_);
    std::vector<std::vector<uint8_t>> planes;
    for (int p = 0; p < pages_; ++p) {
      CUDA(cudaMemcpy(page.data(), data_ + ((count_ - 1) * pages_ + p) * page_bytes_, page_bytes_,
                      cudaMemcpyDeviceToHost));
      const auto* scales = reinterpret_cast<const uint16_t*>(page.data());
      const uint8_t* codes = page.data() + 256 + static_cast<size_t>(heads - 1) * stages * 192;
      for (int t = 0; t < 128; ++t) {
        std::vector<double> key(d, 0.0);
        for (int r = 0; r < stages; ++r) {
          const uint8_t* at = codes + r * 192 + t * 12 / 8;
          const int code = ((at[0] | at[1] << 8) >> (t % 2 * 4)) & 4095;
          for (int c = 0; c < d; ++c) {
            const size_t row = ((static_cast<size_t>(heads - 1) * (d / 16) + c / 16) * stages + r) * 64;
            const double a = kvasir::half_to_float(model_.memory[(row + (code & 63)) * 16 + c % 16]);
            const double b = kvasir::half_to_float(model_.memory[(row + (code >> 6)) * 16 + c % 16]);
            key[c] += a;
            key[c < half ? c + half : c - half] += c < half ? b : -b;
          }
        }
        double score = 0.0;
        for (int j = 0; j < half; ++j) {
          const double angle = (128.0 * p + t) * frequencies_[j];
          score += query[j] * (key[j] * std::cos(angle) - key[half + j] * std::sin(angle));
          score += query[half + j] * (key[j] * std::sin(angle) + key[half + j] * std::cos(angle));
        }
        scores.push_back(score * kvasir::half_to_float(scales[t]) / std::sqrt(static_cast<double>(d)));
        gains.push_back(kvasir::half_to_float(reinterpret_cast<const uint16_t*>(page.data() + value_offset_)[t]));
      }
      planes.emplace_back(page.begin() + static_cast<int64_t>(value_offset_) + 256, page.end());
    }
    const double highest = *std::max_element(scores.begin(), scores.end());
    double sum = 0.0;
    for (double& score : scores) sum += score = std::exp(score - highest);
    std::vector<double> sums(codes_, 0.0), expected(d, 0.0);
    for (size_t t = 0; t < scores.size(); ++t) {
      const uint8_t* plane = planes[t / 128].data();
      const int x = static_cast<int>(t % 128);
      for (int n = 0; n < codes_; ++n) {
        if ((plane[64 * (n / 16 * 4 + x / 32) + 4 * (n % 16) + x % 4] >> (x % 32 / 4) & 1) != 0) {
          sums[n] += scores[t] / sum * gains[t];
        }
      }
    }
    double wrong = 0.0, power = 0.0;
    for (int c = 0; c < d; ++c) {
      for (int n = 0; n < codes_; ++n) {
        expected[c] +=
            sums[n] * kvasir::half_to_float(value_table_[(static_cast<size_t>(heads - 1) * codes_ + n) * d + c]);
      }
      const double difference = outputs[outputs.size() - d + c] - expected[c];
      wrong += difference * difference;
      power += expected[c] * expected[c];
    }
    return wrong / power;
  }

 private:
  const Options& options_;
  const Model model_;
  const int count_, pages_;
  int codes_ = 0, sets_ = 0;
  size_t value_offset_ = 0, page_bytes_ = 0, set_bytes_ = 0;
  CommVqPlan plan_ = {};
  std::vector<double> frequencies_;
  std::vector<float> queries_;
  std::vector<uint16_t> value_table_;
  uint8_t* data_ = nullptr;
  float* outputs_ = nullptr;
  std::vector<CommVqRequest> requests_;
  bench::DeviceMemory memory_;
};

void run(const Options& options, int stages, bool fast, int wide, int context, int count, bench::JsonRows& rows) {
  const Batch batch(options, stages, fast, wide, context, count);
  const bench::Timing timing = bench::time_launches([&](int i, cudaStream_t stream) { batch.launch(i, stream); });
  const double gbps = static_cast<double>(batch.bytes()) / timing.us / 1000.0;
  if (wide == 0 && options.trained == 0)
    rows.add(fast ? "commvq-fast" : "commvq", stages < 16 ? 1 : 2, context, count, timing.us, gbps);
  double parts[3];
  for (int part = 0; part < 3; ++part) {
    parts[part] = bench::time_launches([&](int i, cudaStream_t stream) { batch.launch_part(part, i, stream); }).us;
  }
  std::printf("%6d %6s %6d %8d %6d %10.2f %8.0f %7.1f%% %10.2e %8.2f %8.2f %8.2f\n", stages, fast ? "fast" : "exact",
              batch.planes(), context, count, timing.us, gbps, 100.0 * timing.spread,
              options.check != 0 ? batch.error() : 0.0, parts[0], parts[1], parts[2]);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  bench::print_command(argc, argv);
  std::printf("\n%s, %d query heads, %d kv heads, head dim %d\n", bench::device_name().c_str(),
              options.kv_heads * options.group, options.kv_heads, options.head_dim);
  std::printf("%6s %6s %6s %8s %6s %10s %8s %8s %10s %8s %8s %8s\n", "stages", "tables", "planes", "context", "batch",
              "us", "GB/s", "spread", "nmse", "scores", "values", "merge");
  bench::JsonRows rows(options.json);
  for (const int stages : options.stages) {
    for (const int fast : options.fast) {
      for (const int wide : options.wide) {
        for (const int batch_size : options.batches) {
          for (const int context : options.contexts) run(options, stages, fast != 0, wide, context, batch_size, rows);
        }
      }
    }
  }
  return 0;
}
