// Attention against the definition in double over what the pages decode to.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attend/attend_case.h"

namespace {

using namespace attend_case;
using attend_case::PageKind;
using kvasir::ElementType;
using kvasir::cuda::kFloat16Bits;
using kvasir::cuda::kWideBits;

constexpr double kExact = 1e-6;
constexpr int kWidths[] = {1, 2, 3, 4, 8, kFloat16Bits};

std::string describe(const Setting& s) {
  std::ostringstream text;
  text << "d=" << s.shape.head_dim << " kv=" << s.shape.kv_heads << " group=" << s.shape.group << " formats";
  for (const PageKind& f : s.formats) {
    text << " " << f.key_bits << (f.token_keys ? "t" : "") << "/" << f.value_bits << (f.labels ? "+labels" : "");
    if (f.grid >= 0) text << (f.grid == 0 ? " ends" : " cells");
  }
  if (s.shape.labels) {
    text << " patterns " << s.patterns.fixed << " from page " << s.patterns.first_page << " room " << s.patterns.room;
  }
  text << " data " << static_cast<int>(s.data) << " type " << static_cast<int>(s.type);
  return text.str();
}

// Returns the error and complains where it is above the bound.
double compare(const Setting& setting, double bound = kExact) {
  Batch batch(setting);
  const double error = nmse(batch.attend(), batch.expected());
  CHECK(error <= bound, describe(setting) << ": nmse " << error);
  CHECK(batch.workspace_is_clear(), describe(setting));
  return error;
}

// Lengths that cut in every way: nothing, rows only, pages only, all of it.
std::vector<Length> ragged() {
  return {{0, 3, 0},    {5, 2, 37},      {0, 0, 1},         {0, 0, 0},
          {64, 7, 128}, {0, 1, 16, 100}, {16, 4, 20, 0, 7}, {0, 9, 3, 127, 33}};
}

DEVICE_CASE("attend: every width and head dim") {
  for (const int d : {64, 96, 128, 256}) {
    for (const int bits : kWidths) {
      const double error = compare({{d, 2, 4, 8}, {{bits, bits}}, ragged()});
      std::printf("  d=%d bits=%d nmse %.2e\n", d, bits, error);
    }
  }
}

DEVICE_CASE("attend: both grids, every width, keys per channel and per token") {
  for (const int d : {64, 96, 128, 256}) {
    for (const int grid : {0, 1}) {
      for (const int bits : {1, 2, 3, 4, 8, kWideBits}) {
        compare({{d, 2, 4, 8}, {{bits, bits, false, false, grid}}, ragged()});
      }
      for (const int bits : {2, 4, 8, kWideBits}) {
        compare({{d, 2, 4, 8}, {{bits, bits, true, false, grid}}, ragged()});
      }
    }
    compare({{d, 2, 8, 8}, {{2, 2, false, false, 0}, {2, 2, false, false, 1}, {4, 1, true, false, 1}}, ragged()});
  }
}

DEVICE_CASE("attend: every number of query heads") {
  for (const int d : {64, 96, 128, 256}) {
    for (const int group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16}) {
      for (const int bits : {2, kFloat16Bits}) compare({{d, 2, group, 8}, {{bits, bits}}, {{3, 4, 5}, {0, 2, 130}}});
    }
  }
}

DEVICE_CASE("attend: keys and values of different widths") {
  for (const int key_bits : kWidths) {
    for (const int value_bits : kWidths) {
      compare({{128, 1, 4, 2}, {{key_bits, value_bits}}, {{0, 5, 3}, {2, 1, 0}}});
      compare({{256, 1, 4, 2}, {{key_bits, value_bits}}, {{0, 5, 3}, {2, 1, 0}}});
    }
  }
}

DEVICE_CASE("attend: pages of all widths in one call") {
  std::vector<PageKind> formats;
  for (const int bits : kWidths) formats.push_back({bits, bits});
  for (const int d : {64, 96, 128, 256}) {
    for (const int group : {4, 8})
      compare({{d, 3, group, 4}, formats, {{1, 13, 17}, {0, 7, 0}, {0, 29, 100}, {40, 6, 1}}});
  }
}

DEVICE_CASE("attend: long and short sequences in one batch") {
  compare({{128, 8, 4, 3}, {{2, 2}}, {{0, 300, 60}, {0, 1, 0}, {4, 40, 127}}});
  std::vector<Length> many;
  for (int i = 0; i < 200; ++i) many.push_back({i % 3, i * 7 % 4, i % 40});
  compare({{64, 2, 4, 200}, {{4, 2}}, many});
  compare({{128, 1, 8, 1}, {{2, 2}}, {{0, 1000, 1}}});
}

DEVICE_CASE("attend: eight query heads, blocks of several segments") {
  // Warps of a block that begin in its first segment may share queries; others, and later segments, have their own.
  std::vector<Length> lengths;
  for (int i = 0; i < 40; ++i) lengths.push_back({i % 3 * 5, i * i * 7 % 61, i * 13 % 50});
  compare({{128, 2, 8, 40}, {{2, 2}}, lengths, Data::kPlain, kvasir::ElementType::kFloat16}, 1e-6);
  lengths.resize(24);
  compare({{128, 4, 7, 24}, {{2, 2}}, lengths});
}

DEVICE_CASE("attend: hard numbers") {
  for (const Data data : {Data::kOutliers, Data::kConstant, Data::kPeaked}) {
    for (const int bits : kWidths) {
      const double error = compare({{128, 2, 4, 8}, {{bits, bits}}, ragged(), data});
      std::printf("  data %d bits=%d nmse %.2e\n", static_cast<int>(data), bits, error);
    }
  }
}

DEVICE_CASE("attend: keys with parameters per token, codes of 16 bits") {
  for (const int d : {64, 96, 128, 256}) {
    for (const int bits : {2, 4, 8, kWideBits}) {
      const double error = compare({{d, 2, 4, 8}, {{bits, bits, true}}, ragged()});
      std::printf("  d=%d bits=%d nmse %.2e\n", d, bits, error);
      for (const int group : {1, 8, 11}) compare({{d, 2, group, 2}, {{bits, bits, true}}, {{3, 4, 5}, {0, 2, 130}}});
      for (const Data data : {Data::kOutliers, Data::kConstant, Data::kPeaked}) {
        compare({{d, 2, 4, 3}, {{bits, bits, true}}, {{3, 4, 5}, {0, 2, 130}, {0, 9, 0, 90}}, data});
      }
    }
    compare({{d, 2, 4, 8}, {{kWideBits, kWideBits, false}}, ragged()});
  }
}

DEVICE_CASE("attend: pages of all kinds in one call") {
  std::vector<PageKind> formats;
  for (const int bits : kWidths) formats.push_back({bits, bits});
  for (const int bits : {2, 4, 8, kWideBits}) formats.push_back({bits, bits, true});
  formats.push_back({2, kFloat16Bits, true});
  formats.push_back({2, 2, false, true});
  formats.push_back({1, 4, false, true});
  for (const int d : {64, 96, 128, 256}) {
    for (const int group : {4, 8}) {
      Setting setting = {{d, 3, group, 4, true}, formats, {{1, 27, 17}, {0, 7, 0}, {0, 40, 100}, {40, 14, 1}}};
      setting.patterns = {5, 3};
      compare(setting);
    }
  }
}

DEVICE_CASE("attend: patterns") {
  for (const int d : {64, 96, 128, 256}) {
    for (const int group : {4, 8}) {
      for (const int bits : {1, 2, 3, 4, 8}) {
        Setting setting = {{d, 2, group, 8, true}, {{bits, bits, false, true}}, ragged()};
        setting.patterns.fixed = 32;
        const double error = compare(setting);
        if (group == 4) std::printf("  d=%d bits=%d nmse %.2e\n", d, bits, error);
      }
      // One, a tile and one more, as many as are near, more; with vectors that pages add, from the first page on and
      // later.
      for (const int fixed : {1, 16, 17, 31, 64, 65, 255}) {
        for (const int first_page : {1 << 30, 2, 0, -7}) {
          Setting setting = {{d, 1, group, 2, true}, {{2, 2, false, true}}, {{2, 9, 5}, {0, 3, 0, 70}}};
          setting.patterns = {fixed, first_page};
          setting.patterns.room = fixed < 64 ? 0 : 272;
          compare(setting);
        }
      }
    }
  }
}

// Their blocks have different amounts of shared memory and run the same kernel.
DEVICE_CASE("attend: plans of different sizes live side by side") {
  Setting small = {{128, 2, 4, 1}, {{2, 2, false, true}}, {{0, 5, 9}}};
  small.shape.labels = true;
  small.patterns.fixed = 8;
  Setting large = small;
  large.shape.sequences = 64;
  for (const bool ascending : {true, false}) {
    Batch first(ascending ? small : large), second(ascending ? large : small);
    CHECK(first.plan().block_of[0].shared_bytes != second.plan().block_of[0].shared_bytes,
          first.plan().block_of[0].shared_bytes);
    for (Batch* batch : {&first, &second}) CHECK(nmse(batch->attend(), batch->expected()) <= kExact, ascending);
  }
}

DEVICE_CASE("attend: more patterns than labels") {
  for (const int fixed : {32, 60, 250}) {
    Setting setting = {{128, 1, 4, 2, true}, {{2, 2, false, true}}, {{0, 300, 5}, {0, 260, 0}}};
    setting.patterns = {fixed, 1, true, true, 560};
    const double error = compare(setting);
    std::printf("  fixed %d nmse %.2e\n", fixed, error);
  }
}

DEVICE_CASE("attend: patterns that outgrow their room") {
  Setting setting = {{128, 1, 4, 2, true}, {{2, 2, false, true}}, {{0, 100, 5}, {0, 20, 0}}};
  setting.patterns = {32, 0};
  for (const int room : {0, 112}) {  // none, and too little
    setting.patterns.room = room;
    Batch batch(setting);
    const std::vector<float> got = batch.attend();
    const std::vector<double> expected = batch.expected();
    const auto half = static_cast<std::ptrdiff_t>(got.size() / 2);
    CHECK(std::all_of(got.begin(), got.begin() + half, [](float x) { return std::isnan(x); }), "not numbers");
    CHECK(nmse({got.begin() + half, got.end()}, {expected.begin() + half, expected.end()}) <= kExact, "the other one");
    CHECK(batch.workspace_is_clear(), room);
  }
}

DEVICE_CASE("attend: far patterns, warps with many pages") {
  for (const int group : {3, 8}) {
    Setting setting = {{128, 1, group, 3, true}, {{2, 2, false, true}}, {{0, 300, 5}, {0, 3, 0}, {4, 170, 0}}};
    setting.patterns = {32, 0, true, true, 336};
    setting.blocks = 2;
    compare(setting);
  }
}

DEVICE_CASE("attend: patterns of one side, hard numbers") {
  for (const Data data : {Data::kPlain, Data::kOutliers, Data::kConstant, Data::kPeaked}) {
    for (const bool keys : {true, false}) {
      Setting setting = {{128, 2, 4, 8, true}, {{2, 4, false, true}}, ragged(), data};
      setting.patterns = {32, 3, keys, !keys};
      compare(setting);
      setting.patterns.fixed = 100;
      setting.patterns.room = 112;
      compare(setting);
    }
  }
}

DEVICE_CASE("attend: queries and outputs in 16 bits") {
  // Outputs are rounded to 11 or 8 significant bits.
  for (const int group : {4, 7, 8}) {
    compare({{128, 2, group, 8}, {{2, 2}}, ragged(), Data::kPlain, kvasir::ElementType::kFloat16}, 1e-6);
    compare({{128, 2, group, 8}, {{2, 2}}, ragged(), Data::kPlain, kvasir::ElementType::kBFloat16}, 1e-5);
  }
}

DEVICE_CASE("attend: queries anywhere in memory") {
  for (const int group : {4, 8}) {
    Batch batch({{128, 2, group, 8}, {{2, 2}}, ragged()});
    const std::vector<float> expected = batch.attend();
    kvasir::cuda::AttendRequest request = batch.request();
    uint8_t* moved = nullptr;
    CUDA(cudaMalloc(reinterpret_cast<void**>(&moved), 4 * expected.size() + 4));
    CUDA(cudaMemcpy(moved + 4, request.queries, 4 * expected.size(), cudaMemcpyDeviceToDevice));
    request.queries = moved + 4;
    CUDA(kvasir::cuda::launch_attend(batch.plan(), request, nullptr));
    std::vector<float> got(expected.size());
    CUDA(cudaMemcpy(got.data(), request.outputs, 4 * got.size(), cudaMemcpyDeviceToHost));
    CUDA(cudaFree(moved));
    double power = 0.0, off = 0.0;
    for (size_t i = 0; i < got.size(); ++i) {
      power += static_cast<double>(expected[i]) * expected[i];
      off += static_cast<double>(got[i] - expected[i]) * (got[i] - expected[i]);
    }
    CHECK(off <= 1e-6 * power, "group " << group << ": " << off / power);
  }
}

DEVICE_CASE("attend: equal input gives equal bits") {
  for (const int group : {4, 8}) {
    Batch batch({{128, 8, group, 2}, {{2, 2}}, {{0, 200, 77}, {3, 90, 9}}});
    const std::vector<float> first = batch.attend();
    for (int i = 0; i < 20; ++i) {
      const std::vector<float> again = batch.attend();
      CHECK(std::memcmp(first.data(), again.data(), 4 * first.size()) == 0, "group " << group << " run " << i);
    }
  }
}

DEVICE_CASE("attend: captured in a graph") {
  Batch batch({{128, 8, 4, 2}, {{4, 4}}, {{0, 50, 77}, {3, 9, 9}}});
  const std::vector<float> expected = batch.attend();
  const kvasir::cuda::AttendRequest request = batch.request();
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CUDA(kvasir::cuda::launch_attend(batch.plan(), request, stream));
  CUDA(kvasir::cuda::launch_attend(batch.plan(), request, stream));
  cudaGraph_t graph;
  CUDA(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec;
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 5; ++i) {
    CUDA(cudaMemsetAsync(request.outputs, 0xff, 4 * expected.size(), stream));
    CUDA(cudaGraphLaunch(exec, stream));
    CUDA(cudaStreamSynchronize(stream));
    std::vector<float> got(expected.size());
    CUDA(cudaMemcpy(got.data(), request.outputs, 4 * got.size(), cudaMemcpyDeviceToHost));
    CHECK(std::memcmp(got.data(), expected.data(), 4 * got.size()) == 0, "replay " << i);
  }
  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaStreamDestroy(stream));
}

DEVICE_CASE("attend: sequences listed in device memory") {
  Setting setting = {{128, 2, 4, 8}, {{2, 2}}, ragged()};
  setting.listed = true;
  compare(setting);
}

DEVICE_CASE("attend: a graph reads sequences as they are when it runs") {
  Batch batch({{128, 8, 4, 2}, {{2, 2}}, {{0, 50, 77}, {3, 9, 9}}});
  kvasir::cuda::AttendRequest request = batch.request();
  using kvasir::cuda::DeviceSequence;
  const DeviceSequence* const sequences[2] = {request.sequences[0], request.sequences[1]};
  void* memory;
  CUDA(cudaMalloc(&memory, 2 * sizeof(DeviceSequence)));
  DeviceSequence* const slots = static_cast<DeviceSequence*>(memory);
  const size_t numbers = static_cast<size_t>(2) * 32 * 128;
  std::vector<float> expected(numbers), got(numbers);
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  const DeviceSequence* const addresses[2] = {slots, slots + 1};
  request.sequences = addresses;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CUDA(kvasir::cuda::launch_attend(batch.plan(), request, stream));
  cudaGraph_t graph;
  CUDA(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec;
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  for (int turn = 0; turn < 3; ++turn) {
    for (int i = 0; i < 2; ++i) {
      CUDA(cudaMemcpyAsync(slots + i, sequences[(turn + i) % 2], sizeof(DeviceSequence), cudaMemcpyDeviceToDevice,
                           stream));
    }
    CUDA(cudaMemsetAsync(request.outputs, 0xff, 4 * numbers, stream));
    CUDA(cudaGraphLaunch(exec, stream));
    CUDA(cudaMemcpyAsync(got.data(), request.outputs, 4 * numbers, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    kvasir::cuda::AttendRequest plain = batch.request();
    const DeviceSequence* const turned[2] = {sequences[turn % 2], sequences[(turn + 1) % 2]};
    plain.sequences = turned;
    CUDA(kvasir::cuda::launch_attend(batch.plan(), plain, stream));
    CUDA(cudaMemcpyAsync(expected.data(), plain.outputs, 4 * numbers, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    CHECK(std::memcmp(got.data(), expected.data(), 4 * numbers) == 0, "turn " << turn);
  }
  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaFree(slots));
}

DEVICE_CASE("attend: requests that cannot be are refused") {
  kvasir::cuda::AttendPlan plan;
  CHECK(kvasir::cuda::plan_attend({80, 2, 4, 1}, &plan) == cudaErrorInvalidValue, "head dim");
  CHECK(kvasir::cuda::plan_attend({128, 0, 4, 1}, &plan) == cudaErrorInvalidValue, "kv heads");
  CHECK(kvasir::cuda::plan_attend({128, 2, 4, 0}, &plan) == cudaErrorInvalidValue, "sequences");
  Batch batch({{128, 2, 4, 1}, {{2, 2}}, {{0, 1, 0}}});
  kvasir::cuda::AttendRequest request = batch.request();
  request.count = 2;
  CHECK(kvasir::cuda::launch_attend(batch.plan(), request, nullptr) == cudaErrorInvalidValue, "too many sequences");
  request = batch.request();
  const kvasir::cuda::HeadLayout strange = {128, 5, 2};
  request.formats = &strange;
  CHECK(kvasir::cuda::launch_attend(batch.plan(), request, nullptr) == cudaErrorInvalidValue, "5 bits");
  const kvasir::cuda::HeadLayout odd_tokens = {128, 3, 2, true}, labelled = {128, 2, 2, false, true};
  request.formats = &odd_tokens;
  CHECK(kvasir::cuda::launch_attend(batch.plan(), request, nullptr) == cudaErrorInvalidValue, "3 bits per token");
  request.formats = &labelled;
  CHECK(kvasir::cuda::launch_attend(batch.plan(), request, nullptr) == cudaErrorInvalidValue, "no room for patterns");
  Batch labels({{128, 2, 4, 1, true}, {{2, 2, false, true}}, {{0, 1, 0}}});
  request = labels.request();
  request.room_vectors = 100;
  CHECK(kvasir::cuda::launch_attend(labels.plan(), request, nullptr) == cudaErrorInvalidValue,
        "room for part of a tile");
  request.vector_room = nullptr;
  request.room_vectors = 112;
  CHECK(kvasir::cuda::launch_attend(labels.plan(), request, nullptr) == cudaErrorInvalidValue, "no room at all");
  request = batch.request();
  request.count = kvasir::cuda::kInlineSequences + 1;
  kvasir::cuda::AttendPlan wide;
  CUDA(kvasir::cuda::plan_attend({128, 2, 4, 100}, &wide));
  CHECK(kvasir::cuda::launch_attend(wide, request, nullptr) == cudaErrorInvalidValue, "too many for the parameters");
}

}  // namespace
