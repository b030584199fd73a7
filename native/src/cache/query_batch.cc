#include "cache/query_batch.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "base/checked.h"
#include "base/half.h"
#include "base/row_views.h"

namespace kvasir {
namespace {

// Java writes batches as they lie in memory (dev.kvasir.internal.NativeBatch).
static_assert(offsetof(AttendBatch, sequences) == 8 && offsetof(AttendBatch, count) == 16 &&
                  offsetof(AttendBatch, tokens) == 24 && offsetof(AttendBatch, tokens_each) == 32 &&
                  offsetof(AttendBatch, queries) == 40 && offsetof(AttendBatch, outputs) == 72 &&
                  offsetof(AttendBatch, log_sums) == 104 && offsetof(AttendBatch, learned_sinks) == 112 &&
                  offsetof(AttendBatch, masks) == 120 && offsetof(AttendBatch, depths) == 128 &&
                  offsetof(AttendBatch, on_device) == 136 && offsetof(AttendBatch, stream) == 144 &&
                  sizeof(AttendBatch) == 152,
              "as there");
static_assert(offsetof(RowsView, type) == 8 && offsetof(RowsView, token_stride) == 16 &&
                  offsetof(RowsView, head_stride) == 24 && sizeof(RowsView) == 32 && sizeof(MutableRowsView) == 32,
              "and rows");

int64_t bits_in(uint64_t mask) { return __builtin_popcountll(mask); }

void to_floats(const RowKernels& rows, const void* from, ElementType type, size_t count, float* out) {
  switch (type) {
    case ElementType::kFloat32:
      std::memcpy(out, from, count * sizeof(float));
      return;
    case ElementType::kFloat16:
      rows.from_half(static_cast<const uint16_t*>(from), count, out);
      return;
    case ElementType::kBFloat16:
      for (size_t i = 0; i < count; ++i) out[i] = bfloat_to_float(static_cast<const uint16_t*>(from)[i]);
      return;
  }
}

void from_floats(const RowKernels& rows, const float* from, ElementType type, size_t count, void* out) {
  switch (type) {
    case ElementType::kFloat32:
      std::memcpy(out, from, count * sizeof(float));
      return;
    case ElementType::kFloat16:
      rows.to_half(from, ElementType::kFloat32, count, static_cast<uint16_t*>(out));
      return;
    case ElementType::kBFloat16:
      for (size_t i = 0; i < count; ++i) static_cast<uint16_t*>(out)[i] = float_to_bfloat(from[i]);
      return;
  }
}

}  // namespace

QueryBatch::QueryBatch(const LayerPlan& plan, const AttendBatch& batch) : plan_(plan), batch_(batch) {
  find_runs();
  const AttentionLayer& layer = plan.attention;
  batch_.queries = checked_rows("queries", batch.queries, rows_, layer.query_heads, layer.query_dim());
  batch_.outputs = checked_rows("outputs", batch.outputs, rows_, layer.query_heads, layer.output_dim());
  const int64_t row = int64_t{layer.query_heads} * layer.query_dim() * static_cast<int64_t>(sizeof(float));
  checked_multiply(rows_, row, "bytes of queries");
  if (batch.depths && !batch.masks) refuse("depths without masks");
  if (batch.masks) check_masks();
}

void QueryBatch::find_runs() {
  runs_.reserve(static_cast<size_t>(batch_.count));
  for (int i = 0; i < batch_.count; ++i) {
    const int tokens = batch_.tokens ? batch_.tokens[i] : batch_.tokens_each;
    if (tokens < 1) refuse("the number of query tokens must be positive, it is " + std::to_string(tokens));
    runs_.push_back({rows_, tokens});
    rows_ = checked_add(rows_, tokens, "query tokens");
  }
}

void QueryBatch::check_masks() {
  masks_.assign(batch_.masks, batch_.masks + rows_);
  depths_.resize(masks_.size());
  for (QueryRun& run : runs_) {
    uint64_t* const masks = masks_.data() + run.first;
    int* const depths = depths_.data() + run.first;
    if (std::all_of(masks, masks + run.tokens, [](uint64_t mask) { return mask == 0; })) continue;
    if (run.tokens > kMaxMaskedTokens) {
      refuse("masks for " + std::to_string(run.tokens) + " query tokens of a sequence, more than " +
             std::to_string(kMaxMaskedTokens));
    }
    run.masks = masks;
    run.depths = depths;
    for (int i = 0; i < run.tokens; ++i) {
      check_mask(run, i);
      depths[i] = batch_.depths ? batch_.depths[run.first + i] : static_cast<int>(bits_in(masks[i])) - 1;
      require_range("the depth of a query token", depths[i], 0, kMaxMaskedTokens - 1);
    }
    const int64_t window = plan_.attention.sliding_window;
    for (int i = 0; window > 0 && i < run.tokens; ++i) {
      for (int j = 0; j < run.tokens; ++j) {
        if (depths[i] - depths[j] >= window) masks[i] &= ~(uint64_t{1} << j);
      }
    }
  }
}

void QueryBatch::check_mask(const QueryRun& run, int query) const {
  const uint64_t mask = run.masks[query];
  const std::string whose = "the mask of query token " + std::to_string(query) + " of " + std::to_string(run.tokens);
  if ((mask >> query & 1) == 0) refuse(whose + " hides the token itself");
  if (run.tokens < kMaxMaskedTokens && mask >> run.tokens != 0) refuse(whose + " names tokens that there are not");
}

void QueryBatch::place_guesses(int i, SequenceView& view) {
  const QueryRun& run = runs_[i];
  if (!run.masks || !plan_.turns) return;
  const int64_t first = view.length - run.tokens;
  std::vector<PositionShift> shifts;
  int64_t offset = 0;
  int next = 0;
  for (; next < view.shift_count && view.shifts[next].first <= first; ++next) {
    shifts.push_back(view.shifts[next]);
    offset = view.shifts[next].offset;
  }
  for (int token = 0; token < run.tokens; ++token) {
    while (next < view.shift_count && view.shifts[next].first <= first + token) offset = view.shifts[next++].offset;
    shifts.push_back({first + token, offset + run.depths[token] - token});
  }
  shifts_.push_back(std::move(shifts));
  view.shifts = shifts_.back().data();
  view.shift_count = static_cast<int>(shifts_.back().size());
}

void QueryBatch::take() {
  if (batch_.on_device) return;
  const AttentionLayer& layer = plan_.attention;
  const auto heads = static_cast<size_t>(layer.query_heads), d = static_cast<size_t>(layer.query_dim());
  const size_t elements = static_cast<size_t>(rows_) * heads * d;
  const RowsView& from = batch_.queries;
  queries_ = make_aligned<float>(elements);
  if (is_dense(from, rows_, layer.query_heads, layer.query_dim())) {
    to_floats(*layer.rows, from.data, from.type, elements, queries_.get());
  } else {
    for (size_t i = 0; i < static_cast<size_t>(rows_) * heads; ++i) {
      const void* row = row_at(from, static_cast<int64_t>(i / heads), static_cast<int64_t>(i % heads));
      to_floats(*layer.rows, row, from.type, d, queries_.get() + i * d);
    }
  }
  const MutableRowsView& to = batch_.outputs;
  const bool in_place = to.type == ElementType::kFloat32 && is_dense(to, rows_, layer.query_heads, layer.output_dim());
  if (!in_place) outputs_ = make_aligned<float>(elements);
}

void QueryBatch::deliver() const {
  if (!outputs_) return;
  const AttentionLayer& layer = plan_.attention;
  const auto heads = static_cast<size_t>(layer.query_heads), d = static_cast<size_t>(layer.output_dim());
  const MutableRowsView& to = batch_.outputs;
  for (size_t i = 0; i < static_cast<size_t>(rows_) * heads; ++i) {
    void* row = row_at(to, static_cast<int64_t>(i / heads), static_cast<int64_t>(i % heads));
    from_floats(*layer.rows, outputs_.get() + i * d, to.type, d, row);
  }
}

}  // namespace kvasir
