// kvasir_model_bench: products with weights of every type, for one token, a few and many.
//
// A figure is the median over calls that take matrices in turn, as many as make 512 megabytes, so that weights come
// from memory. It is printed as tokens a second through a matrix of a given number of weights, as products a second,
// and as bytes of weights a second; `cpu` is the same by the time that threads ran, which a busy machine does not
// change. Outputs of the last call are checked against sums in double precision.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "arguments.h"
#include "kernels/kernels.h"
#include "kernels/weights.h"
#include "kvasir/backend.h"
#include "kvasir/model.h"

namespace bench {
namespace {

struct ModelOptions {
  std::vector<std::string> types;  // empty: all
  std::vector<int> tokens = {1, 4, 16, 128};
  int outputs = 5632;
  int inputs = 2048;
  int threads = 0;  // 0: all
  int rotate_mb = 512;
  double seconds = 0.5;
};

constexpr const char* kModelUsage =
    "usage: kvasir_model_bench [--types Q4_K,IQ2_XXS] [--tokens N,N] [--outputs N] [--inputs N] [--threads N]\n"
    "                          [--rotate MEGABYTES] [--seconds S]\n"
    "KVASIR_BACKEND names the backend.\n";

ModelOptions parse_model(int argc, char** argv) {
  ModelOptions options;
  parse(argc, argv, kModelUsage,
        {{"--types", &options.types},
         {"--tokens", &options.tokens},
         {"--outputs", &options.outputs},
         {"--inputs", &options.inputs},
         {"--threads", &options.threads},
         {"--rotate", &options.rotate_mb},
         {"--seconds", &options.seconds}});
  return options;
}

// Any bits, but for exponents of floats and scales, which are those of small numbers.
std::vector<uint8_t> random_weights(const kvasir::WeightLayout& layout, int64_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> weights(static_cast<size_t>(bytes));
  for (uint8_t& byte : weights) byte = static_cast<uint8_t>(random());
  const auto half_at = [&](int64_t at) { weights[at + 1] = static_cast<uint8_t>(0x20 | (weights[at + 1] & 0x83)); };
  for (int64_t at = 0; at < bytes; at += layout.bytes) {
    switch (layout.type) {
      case kvasir::WeightType::kF32:
        weights[at + 3] = static_cast<uint8_t>((weights[at + 3] & 0x80) | 0x3d);
        break;
      case kvasir::WeightType::kBF16:
        weights[at + 1] = static_cast<uint8_t>((weights[at + 1] & 0x80) | 0x3d);
        break;
      case kvasir::WeightType::kQ2_K:
        half_at(at + 80), half_at(at + 82);
        break;
      case kvasir::WeightType::kQ3_K:
        half_at(at + 108);
        break;
      case kvasir::WeightType::kQ4_1:
      case kvasir::WeightType::kQ5_1:
      case kvasir::WeightType::kQ4_K:
      case kvasir::WeightType::kQ5_K:
        half_at(at), half_at(at + 2);
        break;
      case kvasir::WeightType::kQ6_K:
        half_at(at + 208);
        break;
      default:
        half_at(at);
    }
  }
  return weights;
}

// The largest error of some elements, relative to the length of what is multiplied.
double worst_error(const std::vector<float>& in, const uint8_t* weights, kvasir::WeightType type, int tokens,
                   const ModelOptions& options, const std::vector<float>& out) {
  double worst = 0;
  std::vector<float> row(static_cast<size_t>(options.inputs));
  for (int o = 0; o < options.outputs; o += options.outputs / 7 + 1) {
    kvasir::embed(&o, 1, weights, type, options.outputs, options.inputs, row.data());
    for (int t = 0; t < tokens; t += tokens / 3 + 1) {
      double sum = 0, a = 0, b = 0;
      for (int i = 0; i < options.inputs; ++i) {
        const double x = in[static_cast<size_t>(t) * options.inputs + i], w = row[i];
        sum += x * w, a += x * x, b += w * w;
      }
      const double found = out[static_cast<size_t>(t) * options.outputs + o];
      worst = std::max(worst, std::fabs(found - sum) / std::sqrt(a * b));
    }
  }
  return worst;
}

void measure(const kvasir::WeightLayout& layout, int tokens, const ModelOptions& options) {
  const int64_t matrix_bytes = kvasir::weight_row_bytes(layout.type, options.inputs) * options.outputs;
  const int64_t matrices = std::max<int64_t>(1, (int64_t{options.rotate_mb} << 20) / matrix_bytes);
  std::vector<uint8_t> weights = random_weights(layout, matrix_bytes, 1);
  std::vector<uint8_t> all;
  for (int64_t m = 0; m < matrices; ++m) all.insert(all.end(), weights.begin(), weights.end());
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> in(static_cast<size_t>(tokens) * options.inputs),
      out(static_cast<size_t>(tokens) * options.outputs);
  for (float& x : in) x = normal(random);
  const auto call = [&](int64_t m) {
    kvasir::project(in.data(), all.data() + m % matrices * matrix_bytes, layout.type, nullptr, tokens, options.outputs,
                    options.inputs, out.data());
  };
  call(0);
  std::vector<double> walls;
  const std::clock_t cpu = std::clock();
  double spent = 0;
  for (int64_t m = 1; spent < options.seconds || walls.size() < 5; ++m) {
    const auto start = std::chrono::steady_clock::now();
    call(m);
    walls.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    spent += walls.back();
  }
  const double busy = static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC / kvasir::threads();
  std::nth_element(walls.begin(), walls.begin() + walls.size() / 2, walls.end());
  const double wall = walls[walls.size() / 2], by_cpu = busy / static_cast<double>(walls.size());
  const double products = static_cast<double>(tokens) * options.outputs * options.inputs;
  std::printf("%-8s %4d tokens  %9.1f us (cpu %9.1f)  %7.1f G products/s (cpu %7.1f)  %6.2f GB/s  error %.1e\n",
              layout.name, tokens, wall * 1e6, by_cpu * 1e6, products / wall / 1e9, products / by_cpu / 1e9,
              static_cast<double>(matrix_bytes) / wall / 1e9,
              worst_error(in, weights.data(), layout.type, tokens, options, out));
}

void run(const ModelOptions& options) {
  if (options.threads > 0) kvasir::set_threads(options.threads);
  std::printf("%s, %d threads, %d x %d weights\n", kvasir::backend_at(kvasir::backend_index("auto")).name,
              kvasir::threads(), options.outputs, options.inputs);
  for (const kvasir::WeightLayout& layout : kvasir::kWeightLayouts) {
    if (!options.types.empty() &&
        std::find(options.types.begin(), options.types.end(), layout.name) == options.types.end()) {
      continue;
    }
    for (const int tokens : options.tokens) measure(layout, tokens, options);
  }
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  try {
    bench::run(bench::parse_model(argc, argv));
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n" << bench::kModelUsage;
    return 2;
  }
}
