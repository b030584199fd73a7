// Side tables: vectors that a codec keeps beside the pages of one side of one layer of a sequence, such as patterns.
//
// A table grows by chunks that never change, so that forks share them and pages may refer to them for as long as they
// live. A page refers to vectors by one byte: label 0 is none, labels 1..fixed are the vectors of the first chunk, and
// the rest are the newest vectors of later chunks at the time the page was sealed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/match.h"
#include "base/thread_pool.h"
#include "codecs/page_format.h"

namespace kvasir {

// Labels of a page, "none" included.
constexpr int kMaxLabels = 256;

struct SideChunk {
  std::shared_ptr<const uint16_t> vectors;  // float16 [kv_heads][rows][head_dim]
  int rows;
  int64_t page;  // the first page that may refer to it
};

struct SideTable {
  std::vector<SideChunk> chunks;  // by page; chunks after the first have one row

  // Vectors of one kv head.
  int size() const { return chunks.empty() ? 0 : chunks.front().rows + static_cast<int>(chunks.size()) - 1; }

  // Forgets what was added for pages from `page_count` on.
  void truncate(int64_t page_count) {
    while (!chunks.empty() && (chunks.back().page >= page_count || page_count == 0)) chunks.pop_back();
  }
};

// visit(index, vector): the vectors of one kv head, in order.
template <class Visit>
void for_each_vector(const SideTable& table, int kv_head, int head_dim, const Visit& visit) {
  int index = 0;
  for (const SideChunk& chunk : table.chunks) {
    const uint16_t* vectors = chunk.vectors.get() + static_cast<size_t>(kv_head) * chunk.rows * head_dim;
    for (int row = 0; row < chunk.rows; ++row) visit(index++, vectors + static_cast<size_t>(row) * head_dim);
  }
}

// Pointers to them.
inline std::vector<const uint16_t*> side_vectors(const SideTable& table, int kv_head, int head_dim) {
  std::vector<const uint16_t*> vectors;
  vectors.reserve(static_cast<size_t>(table.size()));
  for_each_vector(table, kv_head, head_dim, [&](int, const uint16_t* vector) { vectors.push_back(vector); });
  return vectors;
}

// The view of page `page` over `vectors` of the table.
inline SideView side_view(const SideTable& table, const std::vector<const uint16_t*>& vectors, int64_t page) {
  SideView view;
  view.vectors = vectors.data();
  view.count = static_cast<int>(vectors.size());
  if (table.chunks.empty()) return view;
  view.fixed = table.chunks.front().rows;
  // Chunks after the first are one per page and in order of pages.
  int newer = 0;
  if (table.chunks.size() > 1) {
    const int64_t since = page - table.chunks[1].page + 1;
    newer = static_cast<int>(since < 0 ? 0 : since < view.count - view.fixed ? since : view.count - view.fixed);
  }
  const int room = kMaxLabels - 1 - view.fixed;
  view.first = newer > room ? newer - room : 0;
  view.visible = view.fixed + newer - view.first;
  return view;
}

// What a codec sees of a layer when pages are about to be sealed.
class SealInput {
 public:
  SealInput(int kv_heads, int64_t first_page, int64_t page_count, int64_t tokens, const MatchKernels& match,
            ThreadPool& threads)
      : kv_heads(kv_heads),
        first_page(first_page),
        page_count(page_count),
        tokens(tokens),
        match(match),
        threads(threads) {}
  virtual ~SealInput() = default;

  const int kv_heads;
  const int64_t first_page;
  const int64_t page_count;
  const int64_t tokens;  // that exist, sinks not counted: those of the pages come first
  const MatchKernels& match;
  ThreadPool& threads;

  // Rows of one side as float16 values: out[count][head_dim]. Tokens of pages sealed earlier are gone.
  virtual void rows(int kv_head, int64_t first, int64_t count, float* out) const = 0;
  // Memory for vectors, counted in the budget. Throws kBudgetExceeded or kOutOfMemory.
  virtual std::shared_ptr<uint16_t> take(int64_t halves) = 0;
};

}  // namespace kvasir
