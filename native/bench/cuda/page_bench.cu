// Times what happens to pages besides attention: appending a token, sealing a prompt, shrinking and decoding a layer.
//
//   page_bench [--kv-heads 8] [--head-dim 128] [--prompt 32768] [--layer 131072] [--replays 25]
//
// Rows are random. Every figure is the median of replays of a CUDA graph; the spread is (90th - 10th) / median. What is
// read and written is larger than the L2 cache, but for the single token. GB/s count the bytes in the brackets.
// Shrunk pages are compared with pages sealed at the narrow width; "WRONG" is printed where they differ.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "arguments.h"
#include "fill.cuh"
#include "kernels/cuda/pages/encode.h"
#include "kernels/cuda/pages/shrink.h"
#include "kernels/cuda/rows/rows.h"
#include "kernels/cuda/rows/unpack.h"
#include "launch_timing.h"

namespace {

using namespace kvasir::cuda;
using kvasir::Axis;
using kvasir::PageFormat;

struct Options {
  int kv_heads = 8, head_dim = 128, prompt = 32768, layer = 131072, replays = 25;
};

Options parse(int argc, char** argv) {
  Options options;
  bench::parse(argc, argv,
               {{"--kv-heads", &options.kv_heads},
                {"--head-dim", &options.head_dim},
                {"--prompt", &options.prompt},
                {"--layer", &options.layer},
                {"--replays", &options.replays}});
  return options;
}

class Memory {
 public:
  explicit Memory(size_t bytes) { CUDA(cudaMalloc(&data_, bytes)); }
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  uint8_t* data() const { return static_cast<uint8_t*>(data_); }

 private:
  void* data_ = nullptr;
};

// bfloat16 numbers that are sums of a few uniform ones.
__global__ void fill_numbers(uint16_t* numbers, int64_t count, uint64_t seed) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    const uint32_t bits = bench::hashed(seed + static_cast<uint64_t>(i));
    const float x = bench::unit(bits) + bench::unit(bits * 2654435761u) + bench::unit(bits * 40503u);
    numbers[i] = static_cast<uint16_t>(__float_as_uint(x) >> 16);
  }
}

__global__ void count_differences(const uint32_t* a, const uint32_t* b, int64_t words, unsigned long long* count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words; i += stride) {
    if (a[i] != b[i]) atomicAdd(count, 1ull);
  }
}

// Prints the median time of `work`, which enqueues `repeats` times the same on the stream it is given.
template <class Work>
double measure(const Options& options, const std::string& name, double bytes, int repeats, const Work& work) {
  const bench::Timing timing =
      bench::time_graph(repeats, options.replays, options.replays / 6, [&](int, cudaStream_t stream) { work(stream); });
  std::printf("%-46s %9.2f us %8.0f GB/s  spread %.1f%%\n", name.c_str(), timing.us, bytes / timing.us / 1000.0,
              100.0 * timing.spread);
  std::fflush(stdout);
  return timing.us;
}

PageFormat format_of(kvasir::Side side, kvasir::Elements elements, int bits, int head_dim) {
  PageFormat format;
  format.side = side;
  format.head_dim = head_dim;
  format.bits = bits;
  format.elements = elements;
  const bool by_channel = elements == kvasir::Elements::kCodes && side == kvasir::Side::kKeys;
  format.axis = by_channel ? Axis::kChannel : Axis::kToken;
  format.group = by_channel ? kvasir::kPageTokens : std::min(head_dim, kValueSpan);
  return format;
}

struct Kind {
  const char* name;
  kvasir::Elements elements;
  int bits;
  bool fragments;
};

void make_sides(const Options& options, const Kind& kind, SideFormat sides[2]) {
  const PageFormat keys = format_of(kvasir::Side::kKeys, kind.elements, kind.bits, options.head_dim);
  const PageFormat values = format_of(kvasir::Side::kValues, kind.elements, kind.bits, options.head_dim);
  if (!kind.fragments || !fragment_sides(keys, values, sides)) canonical_sides(options.kv_heads, keys, values, sides);
}

std::vector<uint8_t*> page_table(uint8_t* memory, int64_t pages, int64_t bytes) {
  std::vector<uint8_t*> table;
  for (int64_t p = 0; p < pages; ++p) table.push_back(memory + p * bytes);
  return table;
}

struct Rows {
  Rows(const Options& options, int tokens)
      : shape{options.kv_heads, options.head_dim},
        elements(int64_t{tokens} * options.kv_heads * options.head_dim),
        keys(2 * elements),
        values(2 * elements),
        staged(4 * elements),
        refused(8) {
    fill_numbers<<<2048, 256>>>(reinterpret_cast<uint16_t*>(keys.data()), elements, 1);
    fill_numbers<<<2048, 256>>>(reinterpret_cast<uint16_t*>(values.data()), elements, 2);
    CUDA(cudaMemset(refused.data(), 0, 8));
    auto* halves = reinterpret_cast<uint16_t*>(staged.data());
    staging = {{halves, halves + elements}, tokens};
    input = {{keys.data(), values.data()},
             {kvasir::ElementType::kBFloat16, kvasir::ElementType::kBFloat16},
             tokens,
             nullptr,
             reinterpret_cast<uint32_t*>(refused.data())};
    CUDA(stage_rows(shape, input, 0, tokens, staging, 0, nullptr));
    CUDA(cudaDeviceSynchronize());
  }
  RowShape shape;
  int64_t elements;  // of one side
  Memory keys, values, staged, refused;
  Staging staging;
  InputRows input;
};

// From the staging, or from the input itself.
enum class From { kStaging, kInput };
void seal(const Rows& rows, const SideFormat sides[2], const std::vector<uint8_t*>& pages, cudaStream_t stream,
          From from = From::kStaging) {
  EncodeRequest request = {rows.shape, {sides[0], sides[1]}, rows.staging,
                           0,          pages.data(),         static_cast<int64_t>(pages.size())};
  if (from == From::kInput) request.input = &rows.input;
  CUDA(encode_pages(request, stream));
}

void bench_prompt(const Options& options) {
  const Rows rows(options, options.prompt);
  const double input = 4.0 * static_cast<double>(rows.elements);
  const RowTileLayout tile = {options.head_dim};
  const Memory window(static_cast<size_t>(16) * tile.bytes() * options.kv_heads);
  CUDA(cudaMemset(window.data(), 0, static_cast<size_t>(16) * tile.bytes() * options.kv_heads));
  std::vector<uint8_t*> tiles;
  for (int i = 0; i < 16; ++i) tiles.push_back(window.data() + i * tile.bytes() * options.kv_heads);
  int64_t token = 0;
  measure(options, "append one token", 8.0 * static_cast<double>(rows.elements) / options.prompt, 200,
          [&](cudaStream_t stream) {
            CUDA(append_rows(rows.shape, rows.input, token % options.prompt, 1, tiles.data(), token % 256, stream));
            ++token;
          });
  measure(options, "gather 256 window rows", 8.0 * 256 * options.kv_heads * options.head_dim, 50,
          [&](cudaStream_t stream) { CUDA(gather_rows(rows.shape, tiles.data(), 0, 256, rows.staging, 0, stream)); });
  measure(options, "stage the prompt [in + out]", 2.0 * input, 4, [&](cudaStream_t stream) {
    CUDA(stage_rows(rows.shape, rows.input, 0, options.prompt, rows.staging, 0, stream));
  });
  const Kind kinds[] = {
      {"f16", kvasir::Elements::kHalves, 16, true},
      {"uniform 1", kvasir::Elements::kCodes, 1, true},
      {"uniform 2", kvasir::Elements::kCodes, 2, true},
      {"uniform 3", kvasir::Elements::kCodes, 3, true},
      {"uniform 4", kvasir::Elements::kCodes, 4, true},
      {"uniform 8", kvasir::Elements::kCodes, 8, true},
      {"progressive 16", kvasir::Elements::kNarrowed, 16, true},
      {"progressive 8", kvasir::Elements::kNarrowed, 8, true},
      {"progressive 4", kvasir::Elements::kNarrowed, 4, true},
      {"progressive 2", kvasir::Elements::kNarrowed, 2, true},
      {"canonical uniform 2", kvasir::Elements::kCodes, 2, false},
      {"canonical progressive 16", kvasir::Elements::kNarrowed, 16, false},
  };
  const int64_t pages = options.prompt / kvasir::kPageTokens;
  const Memory out(5 * static_cast<size_t>(rows.elements));
  const Memory floats(static_cast<size_t>(8 * rows.elements));
  auto* decoded = reinterpret_cast<float*>(floats.data());
  for (const Kind& kind : kinds) {
    SideFormat sides[2];
    make_sides(options, kind, sides);
    const int64_t bytes = page_bytes(options.kv_heads, sides);
    const auto table = page_table(out.data(), pages, bytes);
    const double moved = input + static_cast<double>(bytes * pages);
    measure(options, std::string("seal the prompt, ") + kind.name + " [in + out]", moved, 4,
            [&](cudaStream_t stream) { seal(rows, sides, table, stream); });
    if (kind.fragments) {
      measure(options, std::string("the same from appended rows, ") + kind.name + " [in + out]", moved, 4,
              [&](cudaStream_t stream) { seal(rows, sides, table, stream, From::kInput); });
    }
    const std::vector<const uint8_t*> readable(table.begin(), table.end());
    const UnpackRowsRequest request = {
        rows.shape,
        {sides[0], sides[1]},
        readable.data(),
        pages,
        {{decoded, decoded + rows.elements}, options.head_dim, int64_t{options.prompt} * options.head_dim}};
    measure(options, std::string("decode the prompt, ") + kind.name + " [in + out]",
            8.0 * static_cast<double>(rows.elements) + static_cast<double>(bytes * pages), 2,
            [&](cudaStream_t stream) { CUDA(unpack_rows(request, stream)); });
  }
}

void bench_shrink(const Options& options) {
  const Rows rows(options, options.layer);
  const int64_t pages = options.layer / kvasir::kPageTokens;
  Memory wide(5 * static_cast<size_t>(rows.elements)), small(5 * static_cast<size_t>(rows.elements)), differences(8);
  for (const bool fragments : {true, false}) {
    for (const int bits : {16, 8, 4}) {
      SideFormat from[2], to[2];
      make_sides(options, {"", kvasir::Elements::kNarrowed, bits, fragments}, from);
      make_sides(options, {"", kvasir::Elements::kNarrowed, bits / 2, fragments}, to);
      const int64_t from_bytes = page_bytes(options.kv_heads, from), to_bytes = page_bytes(options.kv_heads, to);
      const auto sources = page_table(wide.data(), pages, from_bytes);
      const auto targets = page_table(small.data(), pages, to_bytes);
      seal(rows, from, sources, nullptr);
      CUDA(cudaDeviceSynchronize());
      std::vector<ShrinkPage> list, in_place;
      for (int64_t p = 0; p < pages; ++p) {
        list.push_back({sources[p], targets[p]});
        in_place.push_back({sources[p], sources[p]});
      }
      const ShrinkRequest apart = {rows.shape, {from[0], from[1]}, {to[0], to[1]}, list.data(), pages};
      ShrinkRequest same = apart;
      same.pages = in_place.data();
      const std::string name = std::string(fragments ? "fragments " : "canonical ") + std::to_string(bits) + " to " +
                               std::to_string(bits / 2);
      const auto input = static_cast<double>(from_bytes * pages);
      measure(options, "shrink " + name + ", apart [in]", input, 2,
              [&](cudaStream_t stream) { CUDA(shrink_pages(apart, stream)); });

      // Sealed at the narrow width into the other memory: the same bytes.
      const auto sealed = page_table(wide.data(), pages, to_bytes);
      seal(rows, to, sealed, nullptr);
      CUDA(cudaMemset(differences.data(), 0, 8));
      count_differences<<<1024, 256>>>(reinterpret_cast<uint32_t*>(wide.data()),
                                       reinterpret_cast<uint32_t*>(small.data()), to_bytes * pages / 4,
                                       reinterpret_cast<unsigned long long*>(differences.data()));
      unsigned long long count = 0;
      CUDA(cudaMemcpy(&count, differences.data(), 8, cudaMemcpyDeviceToHost));
      if (count != 0) std::printf("WRONG: %llu words differ from pages sealed at %d bits\n", count, bits / 2);

      seal(rows, from, sources, nullptr);
      CUDA(cudaDeviceSynchronize());
      measure(options, "shrink " + name + ", in place [in]", input, 2,
              [&](cudaStream_t stream) { CUDA(shrink_pages(same, stream)); });
      same.page_count = 1;
      measure(options, "shrink " + name + ", one page in place [in]", static_cast<double>(from_bytes), 20,
              [&](cudaStream_t stream) { CUDA(shrink_pages(same, stream)); });
      ShrinkRequest one = apart;
      one.page_count = 1;
      measure(options, "shrink " + name + ", one page apart [in]", static_cast<double>(from_bytes), 20,
              [&](cudaStream_t stream) { CUDA(shrink_pages(one, stream)); });
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  bench::print_command(argc, argv);
  std::printf("\n%s, %d kv heads, head dim %d, prompt %d, layer %d\n", bench::device_name().c_str(), options.kv_heads,
              options.head_dim, options.prompt, options.layer);
  bench_prompt(options);
  bench_shrink(options);
  return 0;
}
