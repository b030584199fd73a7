// What the grid before attention writes, while attention has begun: programmatic launches overlap.
//
// Attention may read nothing before that grid has ended. Here the grid lets attention begin, waits, and then writes all
// that attention reads: descriptions, page tables and the lists of rows next to them, queries.
#include <cuda_runtime_api.h>

#include <cstring>

#include "attend/attend_case.h"

namespace {

using namespace attend_case;
using kvasir::cuda::DeviceSequence;
using kvasir::cuda::RowSpan;

// In PTX, because tests are compiled without nvcc. After so many nanoseconds copies that many words.
constexpr char kWriteLate[] = R"(
.version 7.8
.target sm_90
.address_size 64
.visible .entry write_late(.param .u64 to, .param .u64 from, .param .u32 words, .param .u64 nanoseconds) {
  .reg .b32 %r<6>;
  .reg .b64 %d<10>;
  .reg .pred %p<3>;
  griddepcontrol.launch_dependents;
  ld.param.u64 %d0, [to];
  ld.param.u64 %d1, [from];
  ld.param.u32 %r0, [words];
  ld.param.u64 %d2, [nanoseconds];
  mov.u64 %d3, %globaltimer;
WAIT:
  mov.u64 %d4, %globaltimer;
  sub.u64 %d4, %d4, %d3;
  setp.lt.u64 %p0, %d4, %d2;
  @%p0 bra WAIT;
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ntid.x;
COPY:
  setp.ge.u32 %p1, %r1, %r0;
  @%p1 bra DONE;
  mul.wide.u32 %d5, %r1, 4;
  add.u64 %d6, %d0, %d5;
  add.u64 %d7, %d1, %d5;
  ld.global.u32 %r3, [%d7];
  st.global.u32 [%d6], %r3;
  add.u32 %r1, %r1, %r2;
  bra COPY;
DONE:
  ret;
}
)";

class LateWriter {
 public:
  LateWriter() {
    CUDA(cudaLibraryLoadData(&library_, kWriteLate, nullptr, nullptr, 0, nullptr, nullptr, 0));
    CUDA(cudaLibraryGetKernel(&kernel_, library_, "write_late"));
  }
  ~LateWriter() { cudaLibraryUnload(library_); }
  LateWriter(const LateWriter&) = delete;
  LateWriter& operator=(const LateWriter&) = delete;

  void launch(void* to, const void* from, size_t bytes, cudaStream_t stream) const {
    auto words = static_cast<uint32_t>(bytes / 4);
    uint64_t nanoseconds = 200000;  // in which attention has begun
    void* arguments[] = {&to, &from, &words, &nanoseconds};
    CUDA(cudaLaunchKernel(kernel_, dim3(1), dim3(256), arguments, 0, stream));
  }

 private:
  cudaLibrary_t library_ = nullptr;
  cudaKernel_t kernel_ = nullptr;
};

// A batch whose descriptions, tables and queries are in one piece of memory, as they are before and after the writing.
class LateBatch {
 public:
  explicit LateBatch(Batch& batch) : batch_(batch), request_(batch.request()) {
    const auto& shape = batch.plan().shape;
    const size_t queries = 4 * static_cast<size_t>(request_.count) * shape.kv_heads * shape.group * shape.head_dim;
    after_.resize(kSlot * request_.count + queries);
    CUDA(cudaMalloc(reinterpret_cast<void**>(&memory_), after_.size()));
    CUDA(cudaMalloc(reinterpret_cast<void**>(&source_), after_.size()));
    for (int i = 0; i < request_.count; ++i) {
      DeviceSequence sequence;
      CUDA(cudaMemcpy(&sequence, request_.sequences[i], sizeof sequence, cudaMemcpyDeviceToHost));
      move(sequence.window.blocks, (sequence.window.end + 15) / 16, kSlot * i + sizeof sequence, 2);
      move(sequence.pages, sequence.page_count, kSlot * i + 128, (kSlot - 128) / 8);
      std::memcpy(after_.data() + kSlot * i, &sequence, sizeof sequence);
      known_.push_back(sequence);
      addresses_.push_back(reinterpret_cast<DeviceSequence*>(memory_ + kSlot * i));
    }
    CUDA(cudaMemcpy(after_.data() + kSlot * request_.count, request_.queries, queries, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(source_, after_.data(), after_.size(), cudaMemcpyHostToDevice));
    request_.sequences = addresses_.data();
    request_.queries = memory_ + kSlot * request_.count;
    CUDA(cudaStreamCreate(&stream_));
  }
  ~LateBatch() {
    cudaFree(memory_);
    cudaFree(source_);
    cudaStreamDestroy(stream_);
  }
  LateBatch(const LateBatch&) = delete;
  LateBatch& operator=(const LateBatch&) = delete;

  const std::vector<DeviceSequence>& known() const { return known_; }
  // From here on attention may look at descriptions early, and at nothing else.
  void settle() { request_.settled = true; }

  // Outputs where descriptions were these before; all else was of no use.
  std::vector<float> attend(const LateWriter& writer, const std::vector<DeviceSequence>& before, size_t numbers) {
    std::vector<uint8_t> stale(after_.size(), 0xff);
    for (size_t i = 0; i < before.size(); ++i) std::memcpy(stale.data() + kSlot * i, &before[i], sizeof before[i]);
    std::vector<float> got(numbers);
    CUDA(cudaMemcpyAsync(memory_, stale.data(), stale.size(), cudaMemcpyHostToDevice, stream_));
    CUDA(cudaMemsetAsync(request_.outputs, 0xff, 4 * numbers, stream_));
    CUDA(cudaStreamSynchronize(stream_));
    writer.launch(memory_, source_, after_.size(), stream_);
    CUDA(kvasir::cuda::launch_attend(batch_.plan(), request_, stream_));
    CUDA(cudaStreamSynchronize(stream_));
    CUDA(cudaMemcpy(got.data(), request_.outputs, 4 * numbers, cudaMemcpyDeviceToHost));
    return got;
  }

 private:
  static constexpr size_t kSlot = 1024;  // a description, the list of its window's rows in the same line, its pages

  // A list of addresses to the slot, where it has room for it.
  void move(const uint64_t*& list, int count, size_t to, size_t room) {
    if (count == 0 || static_cast<size_t>(count) > room) return;
    CUDA(cudaMemcpy(after_.data() + to, list, 8 * static_cast<size_t>(count), cudaMemcpyDeviceToHost));
    list = reinterpret_cast<const uint64_t*>(memory_ + to);
  }

  Batch& batch_;
  kvasir::cuda::AttendRequest request_;
  std::vector<uint8_t> after_;
  uint8_t* memory_ = nullptr;
  uint8_t* source_ = nullptr;
  std::vector<DeviceSequence> known_;
  std::vector<const DeviceSequence*> addresses_;
  cudaStream_t stream_ = nullptr;
};

// Descriptions that attention would find if it looked too early.
struct Before {
  const char* name;
  void (*change)(DeviceSequence&, int);
};
void* nowhere() { return reinterpret_cast<void*>(0x10); }
void without_addresses(DeviceSequence& sequence) {
  sequence.pages = static_cast<const uint64_t*>(nowhere());
  sequence.sinks.blocks = sequence.window.blocks = sequence.pages;
}
constexpr Before kBefore[] = {
    {"the same", [](DeviceSequence&, int) {}},
    {"other addresses", [](DeviceSequence& s, int) { without_addresses(s); }},
    {"another tail of as many units",
     [](DeviceSequence& s, int) {
       without_addresses(s);
       const auto shorten = [](RowSpan& rows) {
         if (rows.end > rows.begin && (rows.end - 1) % 16 > 0 && (rows.end - 1) / 16 > rows.begin / 16) --rows.end;
       };
       shorten(s.sinks);
       shorten(s.window);
       s.hidden_tokens = s.page_count > 0 ? 127 - s.hidden_tokens : 0;
     }},
    {"a page less",
     [](DeviceSequence& s, int) {
       without_addresses(s);
       if (s.page_count > 0) --s.page_count;
     }},
    {"one of them longer",
     [](DeviceSequence& s, int i) {
       without_addresses(s);
       if (i == 0) s.page_count += 1000;
     }},
    {"pages moved from one to the next", [](DeviceSequence& s, int i) { s.page_count += i % 2 == 0 ? 1 : -1; }},
    {"empty", [](DeviceSequence& s, int) { s = {}; }},
    {"all bits set", [](DeviceSequence& s, int) { std::memset(static_cast<void*>(&s), 0xff, sizeof s); }},
    {"far too long", [](DeviceSequence& s, int) { std::memset(static_cast<void*>(&s), 0x7f, sizeof s); }},
    {"of any content",
     [](DeviceSequence& s, int i) {
       std::mt19937 random(static_cast<unsigned>(i) + 5);
       uint32_t words[sizeof s / 4];
       for (uint32_t& word : words) word = static_cast<uint32_t>(random());
       std::memcpy(static_cast<void*>(&s), words, sizeof s);
     }},
};

DEVICE_CASE("attend: what the grid before writes while attention begins") {
  const std::vector<Length> one = {{4, 60, 21}}, equal(4, {0, 33, 9}),
                            ragged = {{0, 3, 0},    {5, 2, 30},      {0, 0, 1},         {0, 0, 0},
                                      {64, 7, 128}, {0, 1, 16, 100}, {16, 4, 20, 0, 7}, {0, 9, 3, 127, 33}};
  std::vector<Length> many;  // more than a warp counts at once
  for (int i = 0; i < 40; ++i) many.push_back({0, i % 5, 1 + i % 7});
  std::vector<Setting> settings;
  for (const auto& lengths : {one, equal, ragged, many}) {
    const int count = static_cast<int>(lengths.size());
    settings.push_back({{128, 2, 8, count}, {{2, 2}}, lengths});
    settings.push_back({{128, 4, 7, count}, {{2, 2}}, lengths});
    settings.push_back({{128, 2, 4, count}, {{2, 2}}, lengths});
    settings.push_back({{128, 2, 4, count}, {{4, 3}, {8, 8, true}}, lengths});
    settings.push_back({{128, 2, 4, count, true}, {{2, 2, false, true}}, lengths});
    settings.back().patterns.fixed = 32;
    settings.push_back(settings.back());
    settings.back().patterns.fixed = 70;
    settings.back().patterns.room = 80;
    settings.push_back({{64, 2, 8, count}, {{2, 2}}, lengths});
  }
  kvasir::cuda::AttendPlan plan;
  CUDA(kvasir::cuda::plan_attend(settings[0].shape, &plan));
  if (!plan.overlaps) return;  // where no grid begins before the one before it has ended
  const LateWriter writer;
  for (const Setting& setting : settings) {
    Batch batch(setting);
    const std::vector<float> expected = batch.attend();
    CHECK(nmse(expected, batch.expected()) <= 1e-6, "group " << setting.shape.group);
    LateBatch late(batch);
    for (const Before& kind : kBefore) {
      std::vector<DeviceSequence> before = late.known();
      for (size_t i = 0; i < before.size(); ++i) kind.change(before[i], static_cast<int>(i));
      const std::vector<float> got = late.attend(writer, before, expected.size());
      CHECK(std::memcmp(got.data(), expected.data(), 4 * got.size()) == 0,
            kind.name << ": d " << setting.shape.head_dim << " group " << setting.shape.group << ", "
                      << setting.lengths.size() << " sequences, labels " << setting.shape.labels << ", formats "
                      << setting.formats.size());
      CHECK(batch.workspace_is_clear(), kind.name);
    }
    late.settle();
    const std::vector<float> got = late.attend(writer, late.known(), expected.size());
    CHECK(std::memcmp(got.data(), expected.data(), 4 * got.size()) == 0,
          "settled: d " << setting.shape.head_dim << " group " << setting.shape.group << ", " << setting.lengths.size()
                        << " sequences");
    CHECK(batch.workspace_is_clear(), "settled");
  }
}

}  // namespace
