#include "engine/cuda/row_attention.h"

#include <algorithm>

#include "engine/cuda/families/family.h"
#include "kernels/cuda/rows/finish.h"

namespace kvasir::cuda {
namespace {

// Float16 rows that attention takes in one launch: few launches, and memory that does not grow with the context.
constexpr int64_t kRowsPerPart = 8192;
// Pages that are unpacked to float32 together, where they must be.
constexpr int64_t kPagesPerStep = 32;
// Query rows whose softmax states are kept at a time; for more of them pages are unpacked again.
constexpr int kStatesAtOnce = 1 << 16;

class RowAttention {
 public:
  RowAttention(const DeviceLayer& layer, const SequenceView& view, const PromptRequest& request, int64_t from)
      : layer_(layer),
        plan_(layer.plan()),
        view_(view),
        request_(request),
        from_(from),
        stream_(layer.queue().stream),
        states_(layer.queue().take(prompt_state_bytes(request))) {
    request_.precision = precision();
    request_.states = states_.as<float>();
    capacity_ = std::min<int64_t>(kRowsPerPart, view.sinks + view.page_count * kPageTokens + view.window);
    capacity_ = std::max<int64_t>({capacity_, kPageTokens, view.sinks, view.window});
    const size_t side = static_cast<size_t>(capacity_) * row();
    const int sides = has_low_keys(request_.precision) ? 3 : 2;
    half_memory_ = layer.queue().take(sides * side * sizeof(uint16_t));
    halves_[0] = half_memory_.as<uint16_t>();
    halves_[1] = halves_[0] + side;
    low_keys_ = sides == 3 ? halves_[1] + side : nullptr;
    const int64_t floats = std::max<int64_t>({kPagesPerStep * kPageTokens, view.sinks, view.window});
    for (Side each : {Side::kKeys, Side::kValues}) {
      if (!through_floats(each)) continue;
      DeviceScratch& memory = float_memory_[static_cast<int>(each)];
      memory = layer.queue().take(static_cast<size_t>(floats) * row() * sizeof(float));
      rows_[static_cast<int>(each)] = memory.as<float>();
    }
  }

  void run() {
    const auto sinks_left_out = static_cast<int>(std::min<int64_t>(from_, view_.sinks));
    rows(view_.sink_blocks, sinks_left_out, view_.sinks - sinks_left_out, sinks_left_out);
    // Pages that even the oldest query does not see any more, or not even the newest yet, are left out.
    const int64_t page_position = view_.length - view_.window - view_.page_count * kPageTokens;
    const bool masked = request_.masks != nullptr;
    const int64_t newest = masked ? view_.length - 1 : request_.first_query + request_.tokens - 1;
    const int64_t first = masked ? request_.masked_from : request_.first_query;
    int64_t page_end = std::clamp<int64_t>((newest - page_position) / kPageTokens + 1, 0, view_.page_count);
    if (from_ > 0) page_end = 0;
    const int64_t oldest = request_.sliding_window > 0 ? first - request_.sliding_window + 1 : 0;
    int64_t page = std::clamp<int64_t>((oldest - page_position) / kPageTokens, 0, page_end);
    const bool floats = through_floats(Side::kKeys) || through_floats(Side::kValues);
    const int64_t most = std::min(floats ? kPagesPerStep : kRowsPerPart, capacity_ / kPageTokens);
    while (page < page_end) {
      int64_t end = page;
      while (end < page_end && end < page + most && view_.pages[end]->shape == view_.pages[page]->shape) ++end;
      pages(page, end, page_position + page * kPageTokens);
      page = end;
    }
    const int64_t window_position = view_.length - view_.window;
    const auto left_out = static_cast<int>(std::clamp<int64_t>(from_ - window_position, 0, view_.window));
    if (newest >= window_position) {
      rows(view_.window_blocks, left_out, view_.window - left_out, window_position + left_out);
    }
    attend();
    check(launch_prompt_finish(request_, stream_), "attention");
  }

 private:
  size_t row() const { return static_cast<size_t>(request_.kv_heads) * static_cast<size_t>(request_.head_dim); }

  // Halves are float16 numbers as rows, too, but for keys that are turned.
  PromptPrecision precision() const {
    const bool halves = layer_.format(Side::kKeys).elements == Elements::kHalves &&
                        layer_.format(Side::kValues).elements == Elements::kHalves;
    if (halves) return plan_.turns ? PromptPrecision::kTurnedHalves : PromptPrecision::kHalves;
    return plan_.attention.fast ? PromptPrecision::kFast : PromptPrecision::kExact;
  }

  // Whether something is to be done to unpacked rows before they are rounded, or the family gives float32 alone.
  bool through_floats(Side side) const {
    return !layer_.family().has_half_rows(side) || (side == Side::kKeys && plan_.turns);
  }

  // Room for rows behind those that wait; where they do not follow on these, or there is none, these go first.
  int64_t place(int64_t count, int64_t position) {
    if (waiting_ > 0 && (position != position_ + waiting_ || waiting_ + count > capacity_)) attend();
    if (waiting_ == 0) position_ = position;
    const int64_t at = waiting_;
    waiting_ += count;
    return at;
  }

  HalfRows half_rows(Side side, int64_t at) const {
    const int64_t offset = at * request_.head_dim;
    uint16_t* const low = side == Side::kKeys && low_keys_ ? low_keys_ + offset : nullptr;
    return {halves_[static_cast<int>(side)] + offset, low, request_.head_dim, capacity_ * request_.head_dim};
  }

  // Rows first .. first + count - 1 of a list of blocks.
  void rows(const uint8_t* const* blocks, int first, int count, int64_t position) {
    if (count == 0) return;
    const int64_t at = place(count, position);
    const RowList list = row_list(blocks);
    const Staging staging = {{halves_[0], halves_[1]}, capacity_};
    check(gather_rows(layer_.row_shape(), list, first, count, staging, at, stream_), "reading rows");
    if (plan_.turns) {
      const FloatRows out = {{rows_[0], nullptr}, request_.head_dim, int64_t{count} * request_.head_dim};
      check(read_rows(layer_.row_shape(), list, first, count, out, stream_), "reading rows");
      turn(count, position);
      round(Side::kKeys, count, at);
    } else if (low_keys_) {
      const size_t line = static_cast<size_t>(request_.head_dim) * sizeof(uint16_t);
      check(cudaMemset2DAsync(half_rows(Side::kKeys, at).low, static_cast<size_t>(capacity_) * line, 0,
                              static_cast<size_t>(count) * line, static_cast<size_t>(request_.kv_heads), stream_),
            "reading rows");
    }
  }

  void pages(int64_t begin, int64_t end, int64_t position) {
    const PageRun run = {view_, begin, end};
    const int64_t count = run.tokens(), at = place(count, position);
    layer_.family().read_rows(run, rows_);
    if (plan_.turns) turn(count, position);
    for (Side side : {Side::kKeys, Side::kValues}) {
      if (through_floats(side)) {
        round(side, count, at);
      } else {
        layer_.family().read_half_rows(run, side, half_rows(side, at));
      }
    }
  }

  void round(Side side, int64_t count, int64_t at) {
    check(round_rows(layer_.row_shape(), rows_[static_cast<int>(side)], count, half_rows(side, at), stream_),
          "rounding rows");
  }

  // Takes all rows that wait.
  void attend() {
    if (waiting_ == 0 && !first_) return;
    const PromptRows part = {halves_[0], low_keys_, halves_[1], capacity_, waiting_, position_};
    check(launch_prompt_part(request_, part, first_, stream_), "attention");
    waiting_ = 0;
    first_ = false;
  }

  // Tokens between two shifts have one offset.
  void turn(int64_t tokens, int64_t position) {
    int64_t done = 0;
    while (done < tokens) {
      int64_t offset = 0, end = tokens;
      for (int i = 0; i < view_.shift_count; ++i) {
        const int64_t first = view_.shifts[i].first - position;
        if (first <= done) offset = view_.shifts[i].offset;
        if (first > done) {
          end = std::min(end, first);
          break;
        }
      }
      KeyTurning turning = {};
      turning.keys = rows_[0];
      turning.kv_heads = request_.kv_heads;
      turning.head_dim = request_.head_dim;
      turning.stride = tokens;
      turning.first = done;
      turning.count = end - done;
      turning.position = position + done + offset;
      turning.pairs = plan_.attention.pairs;
      turning.frequencies = layer_.frequencies();
      turning.magnitude = plan_.magnitude;
      check(launch_turn_keys(turning, stream_), "turning keys");
      done = end;
    }
  }

  const DeviceLayer& layer_;
  const LayerPlan& plan_;
  const SequenceView& view_;
  PromptRequest request_;
  const int64_t from_;
  const cudaStream_t stream_;
  const DeviceScratch states_;
  DeviceScratch half_memory_, float_memory_[2];
  int64_t capacity_;      // rows of a kv head
  uint16_t* halves_[2];   // by side: [kv_heads][capacity_][head_dim]
  uint16_t* low_keys_;    // the same, or null
  float* rows_[2] = {};   // by side, where it goes through them: [kv_heads][tokens][head_dim]
  int64_t waiting_ = 0;   // rows that attention has yet to take
  int64_t position_ = 0;  // of the first of them
  bool first_ = true;
};

}  // namespace

void attend_to_rows(const DeviceLayer& layer, const SequenceView& view, const PromptRequest& request, int64_t from) {
  const int heads = request.kv_heads * request.group, most = std::max(kStatesAtOnce / heads, 1);
  const size_t token = static_cast<size_t>(heads) * static_cast<size_t>(request.head_dim) * element_bytes(request.type);
  for (int first = 0; first < request.tokens; first += most) {
    PromptRequest some = request;
    some.tokens = std::min(most, request.tokens - first);
    some.first_query += first;
    some.queries = static_cast<const uint8_t*>(request.queries) + static_cast<size_t>(first) * token;
    some.outputs = static_cast<uint8_t*>(request.outputs) + static_cast<size_t>(first) * token;
    if (request.ends.log_sums) some.ends.log_sums += static_cast<size_t>(first) * static_cast<size_t>(heads);
    if (request.masks) some.masks += first;
    RowAttention(layer, view, some, from).run();
  }
}

}  // namespace kvasir::cuda
