// Times what sealing CommVQ's pages takes on the device, and what it takes this machine; both must make the same bytes.
//
//   commvq_seal_bench [--kv-heads 8] [--head-dim 128] [--stages 11] [--codes 1024] [--hidden 0] [--flips 16]
//                     [--refinements 1] [--tokens 128,4096,32768] [--host-pages 32] [--replays 5]
//
// Stages of 64 entries. Codebooks and rows are random; a hidden layer of 0 means bits by thresholds and flips without
// end, else by a network and at most `flips` flips. --host-pages are what this machine seals, on all its threads, and
// what is compared: the share of tokens that have all codes, norm and gain alike. 0 leaves that out.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "arguments.h"
#include "base/half.h"
#include "base/thread_pool.h"
#include "codecs/commvq/page_models.h"
#include "kernels/cuda/commvq/seal.h"
#include "kvasir/commvq.h"
#include "launch_timing.h"

namespace {

using namespace kvasir::cuda;
using kvasir::commvq::KeyModel;
using kvasir::commvq::ValueModel;

struct Options {
  int kv_heads = 8, head_dim = 128, stages = 11, codes = 1024, hidden = 0, flips = 16, refinements = 1;
  int host_pages = 32, replays = 5;
  std::vector<int> tokens = {128, 4096, 32768};

  int width() const { return kv_heads * head_dim; }
};

Options parse(int argc, char** argv) {
  Options options;
  bench::parse(argc, argv,
               {{"--kv-heads", &options.kv_heads},
                {"--head-dim", &options.head_dim},
                {"--stages", &options.stages},
                {"--codes", &options.codes},
                {"--hidden", &options.hidden},
                {"--flips", &options.flips},
                {"--refinements", &options.refinements},
                {"--tokens", &options.tokens},
                {"--host-pages", &options.host_pages},
                {"--replays", &options.replays}});
  return options;
}

std::vector<float> normals(size_t count, double size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers;
  for (size_t i = 0; i < count; ++i) numbers.push_back(static_cast<float>(size) * normal(random));
  return numbers;
}

struct Models {
  std::unique_ptr<kvasir::commvq::PageBook> keys, values;

  explicit Models(const Options& o) {
    const size_t width = o.width(), codes = o.codes;
    const auto tables = normals(width * o.stages * 64, 1.0 / std::sqrt(2.0 * o.stages), 1);
    kvasir::KeyCodebook* key_book =
        kvasir::KeyCodebook::create(o.kv_heads, o.head_dim, kvasir::RopePairs::kHalves, o.stages, 64, tables.data());
    keys = kvasir::commvq::make_key_model(*key_book, o.refinements);
    kvasir::KeyCodebook::destroy(key_book);
    const auto table = normals(codes * width, std::sqrt(2.0 / codes), 2);
    kvasir::ValueCodebook* value_book = kvasir::ValueCodebook::create(o.width(), o.codes, table.data(), nullptr);
    kvasir::ValueEncoder* encoder = nullptr;
    if (o.hidden > 0) {
      const size_t hidden = o.hidden;
      const std::vector<float> ones(width, 1.0f), zeros(std::max(width, std::max(2 * codes, hidden)), 0.0f);
      const auto first = normals(hidden * width, 1.0 / std::sqrt(width), 3);
      const auto second = normals(2 * codes * hidden, 1.0 / std::sqrt(hidden), 4);
      encoder = kvasir::ValueEncoder::create(o.width(), o.hidden, o.codes, ones.data(), ones.data(), zeros.data(),
                                             first.data(), zeros.data(), second.data(), zeros.data());
    }
    values = kvasir::commvq::make_value_model(*value_book, encoder, o.flips, o.kv_heads, o.head_dim);
    kvasir::ValueCodebook::destroy(value_book);
    if (encoder != nullptr) kvasir::ValueEncoder::destroy(encoder);
  }
  const KeyModel& key_model() const { return static_cast<const KeyModel&>(*keys); }
  const ValueModel& value_model() const { return static_cast<const ValueModel&>(*values); }
};

class Layer {
 public:
  Layer(const Options& o, const Models& models, int tokens) : options_(o), models_(models), pages_(tokens / 128) {
    const size_t width = o.width();
    for (int side = 0; side < 2; ++side) {
      rows_[side] = normals(static_cast<size_t>(tokens) * width, 1.0, 10 + side);
      std::vector<uint16_t> halves(rows_[side].size());
      for (size_t i = 0; i < halves.size(); ++i) {
        const uint16_t half = kvasir::float_to_half(rows_[side][i]);
        rows_[side][i] = kvasir::half_to_float(half);
        const size_t token = i / width, head = i % width / o.head_dim;
        halves[(head * tokens + token) * o.head_dim + i % o.head_dim] = half;
      }
      staging_.sides[side] = memory_.copy(halves);
    }
    staging_.rows = tokens;
    make_searches();
    const size_t bytes[2] = {models.key_model().page.bytes(), models.value_model().page.bytes()};
    for (int side = 0; side < 2; ++side) {
      uint8_t* const first = memory_.take<uint8_t>(bytes[side] * pages_);
      for (int p = 0; p < pages_; ++p) parts_[side].push_back(first + bytes[side] * p);
    }
    scratch_ = memory_.take<uint8_t>(
        std::max<size_t>({key_scratch_bytes(keys_, pages_), value_scratch_bytes(values_, pages_), 16}));
    CUDA(cudaDeviceSynchronize());
  }

  void seal(int side, cudaStream_t stream) const {
    const CommVqSealRequest request = {staging_, parts_[side].data(), pages_, scratch_};
    CUDA(side == 0 ? seal_commvq_keys(keys_, request, stream) : seal_commvq_values(values_, request, stream));
  }

  // Milliseconds of this machine for a page, and the share of tokens that came out alike.
  struct Host {
    double ms, alike;
  };
  Host host(int side, int pages) const {
    const kvasir::commvq::PageBook& model = side == 0 ? *models_.keys : *models_.values;
    const size_t bytes = side == 0 ? models_.key_model().page.bytes() : models_.value_model().page.bytes();
    std::vector<uint8_t> expected(bytes * pages), got(bytes * pages);
    const auto begin = std::chrono::steady_clock::now();
    kvasir::ThreadPool::shared().run(pages, [&](int page) {
      model.encode(rows_[side].data() + static_cast<size_t>(page) * 128 * options_.width(),
                   expected.data() + bytes * page);
    });
    const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    CUDA(cudaMemcpy(got.data(), parts_[side][0], got.size(), cudaMemcpyDeviceToHost));
    int alike = 0;
    for (int token = 0; token < 128 * pages; ++token) {
      alike += same(side, expected.data() + bytes * (token / 128), got.data() + bytes * (token / 128), token % 128);
    }
    return {ms / pages, alike / (128.0 * pages)};
  }

 private:
  void make_searches() {
    const KeyModel& key = models_.key_model();
    const ValueModel& value = models_.value_model();
    const auto copy = [&](const auto* from, size_t count) {
      return memory_.copy(std::vector<std::decay_t<decltype(*from)>>(from, from + count));
    };
    const size_t width = options_.width(), codes = options_.codes, hidden = options_.hidden;
    keys_ = {key.page, key.head_dim, key.pairs, key.refinements, copy(key.tables, width * options_.stages * 64),
             nullptr};
    auto* const cross = memory_.take<float>(key_cross_bytes(keys_) / sizeof(float));
    CUDA(key_cross(keys_, cross, nullptr));
    keys_.cross = cross;
    values_.page = value.page;
    values_.kv_heads = options_.kv_heads;
    values_.head_dim = options_.head_dim;
    values_.flips = value.flips;
    values_.tables = copy(value.tables, codes * width);
    values_.thresholds = copy(value.thresholds, codes);
    if (value.network) {
      const kvasir::commvq::ValueNetwork& network = *value.network;
      values_.has_network = true;
      values_.network = {options_.hidden,
                         copy(network.scale, width),
                         copy(network.norm_weight, width),
                         copy(network.norm_bias, width),
                         copy(network.first_weight, hidden * width),
                         copy(network.first_bias, hidden),
                         copy(network.second_weight, 2 * codes * hidden),
                         copy(network.second_bias, 2 * codes)};
    }
    auto* const gram = memory_.take<float>(value_gram_bytes(values_) / sizeof(float));
    CUDA(value_gram(values_, gram, nullptr));
    values_.gram = gram;
  }

  bool same(int side, const uint8_t* one, const uint8_t* other, int token) const {
    if (std::memcmp(one + 2 * token, other + 2 * token, 2) != 0) return false;
    if (side == 1) {
      const kvasir::CodePlane plane = models_.value_model().page.plane();
      for (int n = 0; n < options_.codes; ++n) {
        if (plane.get(one + 256, token, n) != plane.get(other + 256, token, n)) return false;
      }
      return true;
    }
    // Codes of two tokens share three bytes.
    for (int i = 0; i < options_.kv_heads * options_.stages; ++i) {
      const size_t at = 256 + 192 * static_cast<size_t>(i) + static_cast<size_t>(token) * 12 / 8;
      const int shift = token % 2 * 4;
      const int first = one[at] | one[at + 1] << 8, second = other[at] | other[at + 1] << 8;
      if (((first ^ second) >> shift & 4095) != 0) return false;
    }
    return true;
  }

  const Options& options_;
  const Models& models_;
  const int pages_;
  std::vector<float> rows_[2];
  Staging staging_ = {};
  KeySearch keys_ = {};
  ValueSearch values_ = {};
  std::vector<uint8_t*> parts_[2];
  void* scratch_ = nullptr;
  bench::DeviceMemory memory_;
};

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  bench::print_command(argc, argv);
  std::printf("\n%s, %d kv heads of %d, %d stages of 64, %d refinements, %d codes, hidden %d\n",
              bench::device_name().c_str(), options.kv_heads, options.head_dim, options.stages, options.refinements,
              options.codes, options.hidden);
  std::printf("%8s %7s %10s %8s %14s %8s %8s\n", "tokens", "side", "ms", "spread", "host ms, same", "times", "alike");
  const Models models(options);
  for (const int tokens : options.tokens) {
    const Layer layer(options, models, tokens);
    for (int side = 0; side < 2; ++side) {
      const bench::Timing timing =
          bench::time_graph(1, options.replays + 1, 1, [&](int, cudaStream_t stream) { layer.seal(side, stream); });
      std::printf("%8d %7s %10.3f %7.1f%%", tokens, side == 0 ? "keys" : "values", timing.us / 1000.0,
                  100.0 * timing.spread);
      const int pages = std::min(options.host_pages, tokens / 128);
      if (pages > 0) {
        const Layer::Host host = layer.host(side, pages);
        const double ms = host.ms * tokens / 128;
        std::printf(" %14.1f %8.0f %7.3f%%", ms, ms / timing.us * 1000.0, 100.0 * host.alike);
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  return 0;
}
