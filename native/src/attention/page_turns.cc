#include "attention/page_turns.h"

#include "codecs/page_format.h"

namespace kvasir {
namespace {

// out = row turned by minus the angle of (cosine, sine).
void turn_back_row(const float* cosine, const float* sine, int half, const float* row, float* out) {
  for (int j = 0; j < half; ++j) {
    const float re = row[j], im = row[half + j];
    out[j] = re * cosine[j] + im * sine[j];
    out[half + j] = im * cosine[j] - re * sine[j];
  }
}

}  // namespace

static_assert(Turns::kTurnTokens == kPageTokens, "offsets are those of a page");

PageTurns::PageTurns(const double* frequencies, int head_dim, double magnitude)
    : offsets_(frequencies, head_dim, magnitude),
      plain_(frequencies, head_dim, 1.0),
      chunks_(new std::atomic<float*>[kChunks]()) {}

PageTurns::~PageTurns() {
  for (int64_t i = 0; i < kChunks; ++i) delete[] chunks_[i].load();
}

const float* PageTurns::page(int64_t multiple, float* scratch) const {
  const int half = plain_.half();
  if (multiple < 0 || multiple >= kChunk * kChunks) {
    plain_.at(multiple * kPageTokens, scratch, scratch + half);
    return scratch;
  }
  std::atomic<float*>& slot = chunks_[multiple / kChunk];
  float* chunk = slot.load(std::memory_order_acquire);
  if (!chunk) {
    const std::lock_guard<std::mutex> lock(mutex_);
    chunk = slot.load(std::memory_order_relaxed);
    if (!chunk) {
      std::unique_ptr<float[]> fresh(new float[static_cast<size_t>(kChunk) * 2 * half]);
      const int64_t first = multiple / kChunk * kChunk;
      for (int64_t i = 0; i < kChunk; ++i) {
        float* row = fresh.get() + static_cast<size_t>(i) * 2 * half;
        plain_.at((first + i) * kPageTokens, row, row + half);
      }
      chunk = fresh.release();
      slot.store(chunk, std::memory_order_release);
    }
  }
  return chunk + static_cast<size_t>(multiple % kChunk) * 2 * half;
}

void PageTurns::turn_back(int64_t position, const float* rows, int count, float* out) const {
  const int half = plain_.half();
  int64_t multiple = position / kPageTokens;
  int offset = static_cast<int>(position % kPageTokens);
  if (offset < 0) {
    multiple -= 1;
    offset += kPageTokens;
  }
  float scratch[kMaxHeadDim];
  const float* whole = page(multiple, scratch);
  for (int r = 0; r < count; ++r) {
    const size_t row = static_cast<size_t>(r) * 2 * half;
    float partly[kMaxHeadDim];
    turn_back_row(plain_.cosine(offset), plain_.sine(offset), half, rows + row, partly);
    turn_back_row(whole, whole + half, half, partly, out + row);
  }
}

}  // namespace kvasir
