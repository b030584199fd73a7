// Times attention of chunks of query tokens over a compressed context: pages decoded a part at a time, then products.
//
//   prompt_bench [--kv-heads 8] [--group 4] [--head-dim 128] [--contexts 8192,32768] [--chunks 1,16,64,256,1024,2048]
//                [--bits 2] [--type float32] [--precision exact] [--prompts 1] [--json FILE]
//
// type: float32 or bfloat16; precision: exact or fast, or halves, whose error then includes that of rounding decoded
// pages to float16.
// The chunk's tokens are the newest of the context. Pages are random. Microseconds of a whole call, and of its decoding
// alone; TFLOP/s count 4 * head dim for each pair of a query head's token and a token that it sees. The error is that
// of a sample of rows against double. Then the same chunks through the public interface, calls enqueued one after the
// other: there, few query tokens go to the kernels of single ones.
//
// prompts: more than 1 times batches of so many chunks instead, each over a context of its own, whose tokens come
// before the chunk's: prompts one after the other and together, products alone (over random rows) and calls.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "arguments.h"
#include "fill.cuh"
#include "json_rows.h"
#include "kernels/cuda/prompt/prompt.h"
#include "kernels/cuda/rows/unpack.h"
#include "kvasir/kvasir.h"
#include "launch_timing.h"

namespace {

using namespace kvasir::cuda;
using kvasir::Axis;
using kvasir::PageFormat;
using kvasir::Side;

constexpr int64_t kPagesPerPart = 64;

struct Options {
  int kv_heads = 8, group = 4, head_dim = 128, bits = 2, prompts = 1;
  std::vector<int> contexts = {8192, 32768}, chunks = {1, 16, 64, 256, 1024, 2048};
  std::string type = "float32";
  std::string precision = "exact";
  std::string json;
};

Options parse(int argc, char** argv) {
  Options options;
  bench::parse(argc, argv,
               {{"--kv-heads", &options.kv_heads},
                {"--group", &options.group},
                {"--head-dim", &options.head_dim},
                {"--contexts", &options.contexts},
                {"--chunks", &options.chunks},
                {"--bits", &options.bits},
                {"--type", &options.type},
                {"--precision", &options.precision},
                {"--prompts", &options.prompts},
                {"--json", &options.json}});
  return options;
}

kvasir::ElementType type_of(const Options& options) {
  return options.type == "float32" ? kvasir::ElementType::kFloat32 : kvasir::ElementType::kBFloat16;
}
PromptPrecision precision_of(const Options& options) {
  return options.precision == "fast"     ? PromptPrecision::kFast
         : options.precision == "halves" ? PromptPrecision::kHalves
                                         : PromptPrecision::kExact;
}

// A number of the given type in each element; float32 ones are not of 16 bits.
__global__ void fill_queries(void* queries, kvasir::ElementType type, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    const float x = 2.0f * bench::unit(bench::hashed(77 + static_cast<uint64_t>(i)));
    if (type == kvasir::ElementType::kFloat32) {
      static_cast<float*>(queries)[i] = x;
    } else {
      static_cast<uint16_t*>(queries)[i] = static_cast<uint16_t>(__float_as_uint(x) >> 16);
    }
  }
}

float number_at(const std::vector<uint8_t>& bytes, kvasir::ElementType type, int64_t index) {
  float number = 0.0f;
  if (type == kvasir::ElementType::kFloat32) {
    std::memcpy(&number, bytes.data() + 4 * index, 4);
  } else {
    uint16_t half;
    std::memcpy(&half, bytes.data() + 2 * index, 2);
    const uint32_t word = static_cast<uint32_t>(half) << 16;
    std::memcpy(&number, &word, 4);
  }
  return number;
}

class Context {
 public:
  Context(const Options& options, int tokens)
      : options_(options), pages_(tokens / kvasir::kPageTokens), type_(type_of(options)) {
    PageFormat formats[2];
    for (const Side side : {Side::kKeys, Side::kValues}) {
      PageFormat& format = formats[static_cast<int>(side)];
      format.side = side;
      format.head_dim = options.head_dim;
      format.bits = options.bits;
      format.elements = kvasir::Elements::kCodes;
      format.axis = side == Side::kKeys ? Axis::kChannel : Axis::kToken;
      format.group = side == Side::kKeys ? kvasir::kPageTokens : std::min(options.head_dim, kValueSpan);
    }
    if (fragment_sides(formats[0], formats[1], sides_)) {
      const HeadLayout layout = head_layout(formats[0], formats[1]);
      const int64_t blocks = pages_ * options.kv_heads;
      auto* memory = memory_.take<uint8_t>(static_cast<size_t>(blocks) * layout.bytes());
      bench::fill_blocks<<<2048, 256>>>(memory, blocks, layout, {0, false, 1, options.kv_heads}, 5);
      for (int64_t p = 0; p < pages_; ++p) list_.push_back(memory + p * options.kv_heads * layout.bytes());
    } else {
      // Head dims without fragments: float16 pages of docs/format.md.
      for (PageFormat& format : formats) format.elements = kvasir::Elements::kHalves;
      canonical_sides(options.kv_heads, formats[0], formats[1], sides_);
      const int64_t bytes = page_bytes(options.kv_heads, sides_);
      auto* memory = memory_.take<uint8_t>(static_cast<size_t>(pages_ * bytes));
      bench::fill_halves<<<2048, 256>>>(reinterpret_cast<__half*>(memory), pages_ * bytes / 2, 5);
      for (int64_t p = 0; p < pages_; ++p) list_.push_back(memory + p * bytes);
    }
    const size_t side = static_cast<size_t>(kPagesPerPart) * kvasir::kPageTokens * row();
    for (uint16_t*& rows : rows_) rows = memory_.take<uint16_t>(side);
    precision_ = precision_of(options);
  }

  int64_t row() const { return int64_t{options_.kv_heads} * options_.head_dim; }
  int64_t tokens() const { return pages_ * kvasir::kPageTokens; }
  int64_t number_bytes() const { return type_ == kvasir::ElementType::kFloat32 ? 4 : 2; }

  // Float32 rows of pages first .. first + count - 1.
  void decode(int64_t first, int64_t count, float* const (&rows)[2], cudaStream_t stream) const {
    UnpackRowsRequest request = {};
    request.shape = {options_.kv_heads, options_.head_dim};
    request.sides[0] = sides_[0];
    request.sides[1] = sides_[1];
    request.pages = list_.data() + first;
    request.page_count = count;
    request.out = {{rows[0], rows[1]}, options_.head_dim, count * kvasir::kPageTokens * options_.head_dim};
    CUDA(unpack_rows(request, stream));
  }

  void run(const PromptRequest& request, cudaStream_t stream, bool products = true) const {
    const int64_t d = options_.head_dim, stride = kPagesPerPart * kvasir::kPageTokens;
    for (int64_t page = 0; page < pages_; page += kPagesPerPart) {
      UnpackHalfRowsRequest decoding = {};
      decoding.shape = {options_.kv_heads, options_.head_dim};
      decoding.sides[0] = sides_[0];
      decoding.sides[1] = sides_[1];
      decoding.pages = list_.data() + page;
      decoding.page_count = std::min(kPagesPerPart, pages_ - page);
      uint16_t* const low = has_low_keys(precision_) ? rows_[2] : nullptr;
      decoding.out[0] = {rows_[0], low, d, stride * d};
      decoding.out[1] = {rows_[1], nullptr, d, stride * d};
      CUDA(unpack_half_rows(decoding, stream));
      if (!products) continue;
      const PromptRows part = {
          rows_[0], low, rows_[1], stride, decoding.page_count * kvasir::kPageTokens, page * kvasir::kPageTokens};
      CUDA(launch_prompt_part(request, part, page == 0, stream));
    }
    if (products) CUDA(launch_prompt_finish(request, stream));
  }

  void measure(const std::vector<int>& chunks, bench::JsonRows& json) {
    for (const int chunk : chunks) {
      PromptRequest request = {};
      request.kv_heads = options_.kv_heads;
      request.group = options_.group;
      request.head_dim = options_.head_dim;
      request.tokens = chunk;
      request.type = type_;
      request.precision = precision_;
      const int64_t elements = chunk * options_.group * row();
      bench::DeviceMemory memory;
      auto* queries = memory.take<uint8_t>(static_cast<size_t>(elements * number_bytes()));
      fill_queries<<<1024, 256>>>(queries, type_, elements);
      request.queries = queries;
      request.outputs = memory.take<uint8_t>(static_cast<size_t>(elements * number_bytes()));
      request.first_query = tokens() - chunk;
      request.part_tokens = std::min(tokens(), kPagesPerPart * kvasir::kPageTokens);
      request.scale = 1.0f / std::sqrt(static_cast<float>(options_.head_dim));
      request.states = memory.take<float>(prompt_state_bytes(request) / sizeof(float));
      run(request, nullptr);
      const double error = check(request);
      const double once = bench::time_once(nullptr, [&] { run(request, nullptr); });
      const int launches = std::clamp(static_cast<int>(3000.0 / once), 1, 20);
      const auto time = [&](bool products) {
        return bench::time_graph(launches, 8, 2, [&](int, cudaStream_t stream) { run(request, stream, products); });
      };
      const bench::Timing whole = time(true), decoding = time(false);
      const double pairs = (tokens() - 0.5 * (chunk - 1)) * chunk * options_.kv_heads * options_.group;
      std::printf("context %6lld, chunk %5d: %10.1f us (spread %4.1f%%), decoding %8.1f us, %6.1f TFLOP/s, NMSE %.1e\n",
                  static_cast<long long>(tokens()), chunk, whole.us, 100.0 * whole.spread, decoding.us,
                  4.0 * options_.head_dim * pairs / whole.us * 1e-6, error);
      std::fflush(stdout);
      json.add("prompt", options_.bits, static_cast<int>(tokens()), chunk, whole.us, 0.0);
    }
  }

 private:
  // NMSE of the first, the middle and the last token, heads of the first and the last kv head.
  double check(const PromptRequest& request) {
    if (host_rows_[0].empty()) {
      bench::DeviceMemory memory;
      float* const rows[2] = {memory.take<float>(static_cast<size_t>(tokens() * row())),
                              memory.take<float>(static_cast<size_t>(tokens() * row()))};
      decode(0, pages_, rows, nullptr);
      for (int s = 0; s < 2; ++s) {
        host_rows_[s].resize(static_cast<size_t>(tokens() * row()));
        CUDA(cudaMemcpy(host_rows_[s].data(), rows[s], host_rows_[s].size() * sizeof(float), cudaMemcpyDeviceToHost));
      }
    }
    const int d = options_.head_dim, heads = options_.kv_heads * options_.group;
    const auto bytes = static_cast<size_t>(request.tokens * options_.group * row() * number_bytes());
    std::vector<uint8_t> queries(bytes), outputs(bytes);
    CUDA(cudaMemcpy(queries.data(), request.queries, bytes, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(outputs.data(), request.outputs, bytes, cudaMemcpyDeviceToHost));
    double error = 0.0, power = 0.0;
    std::vector<double> weights(static_cast<size_t>(tokens()));
    for (const int token : {0, request.tokens / 2, request.tokens - 1}) {
      for (const int head : {0, heads - 1}) {
        const int64_t at = (int64_t{token} * heads + head) * d, seen = request.first_query + token + 1;
        const float* keys = host_rows_[0].data() + head / options_.group * tokens() * d;
        const float* values = host_rows_[1].data() + head / options_.group * tokens() * d;
        double peak = -INFINITY, sum = 0.0;
        for (int64_t t = 0; t < seen; ++t) {
          double dot = 0.0;
          for (int c = 0; c < d; ++c) dot += static_cast<double>(number_at(queries, type_, at + c)) * keys[t * d + c];
          weights[static_cast<size_t>(t)] = dot * request.scale;
          peak = std::max(peak, weights[static_cast<size_t>(t)]);
        }
        std::vector<double> expected(static_cast<size_t>(d));
        for (int64_t t = 0; t < seen; ++t) {
          const double weight = std::exp(weights[static_cast<size_t>(t)] - peak);
          sum += weight;
          for (int c = 0; c < d; ++c) expected[static_cast<size_t>(c)] += weight * values[t * d + c];
        }
        for (int c = 0; c < d; ++c) {
          const double right = expected[static_cast<size_t>(c)] / sum, off = number_at(outputs, type_, at + c) - right;
          error += off * off;
          power += right * right;
        }
      }
    }
    return error / power;
  }

  const Options& options_;
  const int64_t pages_;
  const kvasir::ElementType type_;
  SideFormat sides_[2];
  bench::DeviceMemory memory_;
  std::vector<const uint8_t*> list_;
  PromptPrecision precision_;
  uint16_t* rows_[3];  // keys, values, what keys lack
  std::vector<float> host_rows_[2];
};

using CachePointer = std::unique_ptr<kvasir::Cache, void (*)(kvasir::Cache*)>;

CachePointer make_cache(const Options& options) {
  using kvasir::CacheConfig;
  const std::unique_ptr<CacheConfig, void (*)(CacheConfig*)> config(CacheConfig::create(1), CacheConfig::destroy);
  config->set_heads(0, options.kv_heads * options.group, options.kv_heads, options.head_dim);
  for (const Side side : {Side::kKeys, Side::kValues}) config->set_codec(0, side, "uniform", options.bits);
  if (options.precision == "fast") config->set_precision(kvasir::Precision::kFast);
  config->set_backend("cuda");
  return {kvasir::Cache::create(*config), kvasir::Cache::destroy};
}

// Microseconds of a call, the median; calls are enqueued one after the other.
template <class Call>
double time_calls(cudaStream_t stream, const Call& call) {
  for (int i = 0; i < 3; ++i) call();
  CUDA(cudaStreamSynchronize(stream));
  const double once = bench::time_once(stream, call);
  const int calls = std::clamp(static_cast<int>(3000.0 / once), 2, 50);
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) {
    const auto all = [&] {
      for (int j = 0; j < calls; ++j) call();
    };
    times.push_back(bench::time_once(stream, all) / calls);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// Queries, and room for outputs.
struct QueryMemory {
  QueryMemory(const Options& options, int64_t tokens)
      : bytes(static_cast<size_t>(tokens * options.kv_heads * options.group * options.head_dim) * sizeof(float)),
        queries(memory.take<uint8_t>(2 * bytes)),
        outputs(queries + bytes) {
    fill_queries<<<1024, 256>>>(queries, type_of(options), static_cast<int64_t>(bytes / sizeof(float)));
  }

  bench::DeviceMemory memory;
  size_t bytes;
  uint8_t *queries, *outputs;
};

std::vector<float> random_rows(size_t count) {
  std::vector<float> rows(count);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = 2.0f * bench::unit(bench::hashed(i));
  return rows;
}

void measure_calls(const Options& options, int context) {
  const CachePointer cache = make_cache(options);
  const int64_t id = cache->new_sequence();
  // Some tokens more than pages hold, as it mostly is.
  const auto rows = random_rows(static_cast<size_t>(options.kv_heads) * options.head_dim * (context + 64));
  cache->append(id, 0, rows.data(), rows.data(), context + 64);
  const QueryMemory memory(options, *std::max_element(options.chunks.begin(), options.chunks.end()));
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaDeviceSynchronize());
  for (const int chunk : options.chunks) {
    const double us = time_calls(stream, [&] {
      cache->attend_device(0, &id, 1, chunk, memory.queries, memory.outputs, type_of(options), stream);
    });
    std::printf("context %6d, chunk %5d: %10.1f us a call\n", context, chunk, us);
    std::fflush(stdout);
  }
  CUDA(cudaStreamDestroy(stream));
}

// Batches: products over rows that are there already, as many together as decoding would hold.
class Batch {
 public:
  Batch(const Options& options, int context, int chunk)
      : options_(options), memory_(options, int64_t{options.prompts} * chunk) {
    const int64_t tokens = context + chunk, side = tokens * options.kv_heads * options.head_dim;
    const size_t token_bytes =
        static_cast<size_t>(options.kv_heads) * options.group * options.head_dim * (options.type == "float32" ? 4 : 2);
    for (int p = 0; p < options.prompts; ++p) {
      auto* rows = memory_.memory.take<uint16_t>(static_cast<size_t>(3 * side));
      bench::fill_halves<<<1024, 256>>>(reinterpret_cast<__half*>(rows), 3 * side, 3 * p);
      PromptRequest request = {};
      request.kv_heads = options.kv_heads;
      request.group = options.group;
      request.head_dim = options.head_dim;
      request.tokens = chunk;
      request.type = type_of(options);
      request.precision = precision_of(options);
      request.queries = memory_.queries + token_bytes * static_cast<size_t>(p) * static_cast<size_t>(chunk);
      request.outputs = memory_.outputs + token_bytes * static_cast<size_t>(p) * static_cast<size_t>(chunk);
      request.first_query = context;
      request.scale = 1.0f / std::sqrt(static_cast<float>(options.head_dim));
      request.part_tokens = tokens;
      request.states = memory_.memory.take<float>(prompt_state_bytes(request) / sizeof(float));
      uint16_t* const low = has_low_keys(request.precision) ? rows + 2 * side : nullptr;
      parts_.push_back({request, {rows, low, rows + side, tokens, tokens, 0}, true});
    }
    together_ = static_cast<int>(
        std::clamp<int64_t>(kPagesPerPart * kvasir::kPageTokens / tokens, 1, static_cast<int64_t>(parts_.size())));
  }

  // So many at a time; 0: as many as fit.
  double time(int together) const {
    const int step = together > 0 ? together : together_;
    const auto run = [&](int, cudaStream_t stream) {
      for (int first = 0; first < static_cast<int>(parts_.size()); first += step) {
        const int count = std::min(step, static_cast<int>(parts_.size()) - first);
        CUDA(launch_prompt_parts(parts_.data() + first, count, stream));
        std::vector<PromptRequest> requests;
        for (int i = 0; i < count; ++i) requests.push_back(parts_[static_cast<size_t>(first + i)].request);
        CUDA(launch_prompt_finishes(requests.data(), count, stream));
      }
    };
    return bench::time_graph(4, 12, 2, run).us;
  }
  const QueryMemory& memory() const { return memory_; }

 private:
  const Options& options_;
  QueryMemory memory_;
  std::vector<PromptPart> parts_;
  int together_;
};

void measure_batches(const Options& options, int context, int chunk) {
  const int count = options.prompts;
  const Batch batch(options, context, chunk);
  const double apart = batch.time(1), together = batch.time(0);
  const CachePointer cache = make_cache(options);
  const auto rows = random_rows(static_cast<size_t>(options.kv_heads) * options.head_dim * (context + chunk));
  std::vector<int64_t> ids;
  for (int p = 0; p < count; ++p) {
    ids.push_back(cache->new_sequence());
    cache->append(ids.back(), 0, rows.data(), rows.data(), context + chunk);
  }
  const QueryMemory& memory = batch.memory();
  const size_t prompt = memory.bytes / static_cast<size_t>(count) / (options.type == "float32" ? 1 : 2);
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaDeviceSynchronize());
  const double calls = time_calls(stream, [&] {
    for (int p = 0; p < count; ++p) {
      const size_t at = static_cast<size_t>(p) * prompt;
      cache->attend_device(0, &ids[static_cast<size_t>(p)], 1, chunk, memory.queries + at, memory.outputs + at,
                           type_of(options), stream);
    }
  });
  const double call = time_calls(stream, [&] {
    cache->attend_device(0, ids.data(), count, chunk, memory.queries, memory.outputs, type_of(options), stream);
  });
  CUDA(cudaStreamDestroy(stream));
  std::printf(
      "context %6d, %3d chunks of %5d: products %9.1f us one after the other, %9.1f together; %9.1f us in %d calls, "
      "%9.1f in one\n",
      context, count, chunk, apart, together, calls, count, call);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  bench::print_command(argc, argv);
  std::printf("\n%s, %d query heads, %d kv heads, head dim %d, uniform %d bits, queries %s, %s\n",
              bench::device_name().c_str(), options.group * options.kv_heads, options.kv_heads, options.head_dim,
              options.bits, options.type.c_str(), options.precision.c_str());
  if (options.prompts > 1) {
    for (const int context : options.contexts) {
      for (const int chunk : options.chunks) measure_batches(options, context, chunk);
    }
    return 0;
  }
  bench::JsonRows json(options.json);
  for (const int tokens : options.contexts) {
    Context context(options, tokens);
    context.measure(options.chunks, json);
  }
  for (const int tokens : options.contexts) measure_calls(options, tokens);
  return 0;
}
