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
// Query rows of a prompt whose softmax states are kept at a time; for more of them pages are unpacked again.
constexpr int kStatesAtOnce = 1 << 16;
// Of the states of prompts that attend together.
constexpr size_t kStateBytes = size_t{64} << 20;

// Rows begin .. end - 1 of sinks or of the window, or pages of one shape.
struct Piece {
  enum class Kind { kSinks, kPages, kWindow } kind;
  int64_t begin, end;
  int64_t position;

  int64_t tokens() const { return (end - begin) * (kind == Kind::kPages ? kPageTokens : 1); }
};

// Tokens side by side.
struct Part {
  std::vector<Piece> pieces;
  int64_t tokens = 0;
};

// What a prompt sees, in the parts in which attention takes it. Known by the prompt alone, because sums depend on it.
class PromptParts {
 public:
  // page_step: pages that are unpacked together, at most.
  PromptParts(const RowPrompt& prompt, int64_t page_step) : view_(*prompt.view) {
    room_ = std::min<int64_t>(kRowsPerPart, view_.sinks + view_.page_count * kPageTokens + view_.window);
    room_ = std::max<int64_t>({room_, kPageTokens, view_.sinks, view_.window});
    const PromptRequest& request = prompt.request;
    add({Piece::Kind::kSinks, std::min<int64_t>(prompt.from, view_.sinks), view_.sinks, 0});
    // Pages that even the oldest query does not see any more, or not even the newest yet, are left out.
    const int64_t page_position = view_.length - view_.window - view_.page_count * kPageTokens;
    const bool masked = request.masks != nullptr;
    const int64_t newest = masked ? view_.length - 1 : request.first_query + request.tokens - 1;
    const int64_t first = masked ? request.masked_from : request.first_query;
    int64_t page_end = std::clamp<int64_t>((newest - page_position) / kPageTokens + 1, 0, view_.page_count);
    if (prompt.from > 0) page_end = 0;
    const int64_t oldest = request.sliding_window > 0 ? first - request.sliding_window + 1 : 0;
    int64_t page = std::clamp<int64_t>((oldest - page_position) / kPageTokens, 0, page_end);
    const int64_t step = std::min(page_step, room_ / kPageTokens);
    while (page < page_end) {
      int64_t end = page;
      while (end < page_end && end < page + step && view_.pages[end]->shape == view_.pages[page]->shape) ++end;
      add({Piece::Kind::kPages, page, end, page_position + page * kPageTokens});
      page = end;
    }
    const int64_t window_position = view_.length - view_.window;
    const int64_t left_out = std::clamp<int64_t>(prompt.from - window_position, 0, view_.window);
    if (newest >= window_position) add({Piece::Kind::kWindow, left_out, view_.window, window_position});
    if (parts_.empty()) parts_.emplace_back();  // of no tokens, for states that say so
  }

  const std::vector<Part>& list() const { return parts_; }
  // Tokens of the longest.
  int64_t most() const {
    int64_t most = 1;
    for (const Part& part : parts_) most = std::max(most, part.tokens);
    return most;
  }

 private:
  // To the last part where it follows on that and there is room, else to a new one. `position`: of row 0.
  void add(Piece piece) {
    if (piece.begin == piece.end) return;
    if (piece.kind != Piece::Kind::kPages) piece.position += piece.begin;
    if (!parts_.empty()) {
      const Piece& last = parts_.back().pieces.back();
      const bool follows = piece.position == last.position + last.tokens();
      if (!follows || parts_.back().tokens + piece.tokens() > room_) parts_.emplace_back();
    } else {
      parts_.emplace_back();
    }
    parts_.back().pieces.push_back(piece);
    parts_.back().tokens += piece.tokens();
  }

  const SequenceView& view_;
  int64_t room_;  // of a part
  std::vector<Part> parts_;
};

// Halves are float16 numbers as rows, too, but for keys that are turned.
PromptPrecision precision_of(const DeviceLayer& layer) {
  const LayerPlan& plan = layer.plan();
  const bool halves = layer.format(Side::kKeys).elements == Elements::kHalves &&
                      layer.format(Side::kValues).elements == Elements::kHalves;
  if (halves) return plan.turns ? PromptPrecision::kTurnedHalves : PromptPrecision::kHalves;
  return plan.attention.fast ? PromptPrecision::kFast : PromptPrecision::kExact;
}

// Whether something is to be done to unpacked rows before they are rounded, or the family gives float32 alone.
bool through_floats(const DeviceLayer& layer, Side side) {
  return !layer.family().has_half_rows(side) || (side == Side::kKeys && layer.plan().turns);
}

// A prompt, or a slice of one, and what it sees.
struct PlannedPrompt {
  PlannedPrompt(const DeviceLayer& layer, const RowPrompt& prompt)
      : view(*prompt.view),
        request(prompt.request),
        parts(prompt, through_floats(layer, Side::kKeys) || through_floats(layer, Side::kValues) ? kPagesPerStep
                                                                                                 : kRowsPerPart) {
    request.precision = precision_of(layer);
    request.part_tokens = parts.most();
  }

  const SequenceView& view;
  PromptRequest request;
  PromptParts parts;
};

// Prompts whose states are kept together.
class RowAttention {
 public:
  RowAttention(const DeviceLayer& layer, PlannedPrompt* prompts, size_t count)
      : layer_(layer), prompts_(prompts), count_(count), stream_(layer.queue().stream) {
    size_t state_bytes = 0;
    int64_t rows = 0, most = kRowsPerPart, floats = kPagesPerStep * kPageTokens;
    for (size_t i = 0; i < count; ++i) {
      const PlannedPrompt& prompt = prompts[i];
      state_bytes += prompt_state_bytes(prompt.request);
      rows += prompt.parts.most();
      most = std::max(most, prompt.parts.most());
      floats = std::max<int64_t>({floats, prompt.view.sinks, prompt.view.window});
    }
    states_ = layer.queue().take(state_bytes);
    auto* states = states_.as<uint8_t>();
    for (size_t i = 0; i < count; ++i) {
      prompts[i].request.states = reinterpret_cast<float*>(states);
      states += prompt_state_bytes(prompts[i].request);
    }
    capacity_ = std::min(rows, most);
    const size_t side = static_cast<size_t>(capacity_) * row();
    const int sides = has_low_keys(shape().precision) ? 3 : 2;
    half_memory_ = layer.queue().take(sides * side * sizeof(uint16_t));
    halves_[0] = half_memory_.as<uint16_t>();
    halves_[1] = halves_[0] + side;
    low_keys_ = sides == 3 ? halves_[1] + side : nullptr;
    for (Side each : {Side::kKeys, Side::kValues}) {
      if (!through_floats(layer, each)) continue;
      DeviceScratch& memory = float_memory_[static_cast<int>(each)];
      memory = layer.queue().take(static_cast<size_t>(floats) * row() * sizeof(float));
      rows_[static_cast<int>(each)] = memory.as<float>();
    }
  }

  // First parts of all prompts, then the second ones: no launch has two of one prompt.
  void run() {
    size_t most = 0;
    for (size_t i = 0; i < count_; ++i) most = std::max(most, prompts_[i].parts.list().size());
    for (size_t n = 0; n < most; ++n) {
      for (size_t i = 0; i < count_; ++i) {
        if (n < prompts_[i].parts.list().size()) read(prompts_[i], prompts_[i].parts.list()[n], n == 0);
      }
      attend();
    }
    std::vector<PromptRequest> requests;
    for (size_t i = 0; i < count_; ++i) requests.push_back(prompts_[i].request);
    check(launch_prompt_finishes(requests.data(), static_cast<int>(count_), stream_), "attention");
  }

 private:
  // What all requests have in common.
  const PromptRequest& shape() const { return prompts_[0].request; }
  int head_dim() const { return shape().head_dim; }
  size_t row() const { return static_cast<size_t>(shape().kv_heads) * static_cast<size_t>(head_dim()); }

  HalfRows half_rows(Side side, int64_t at) const {
    const int64_t offset = at * head_dim();
    uint16_t* const low = side == Side::kKeys && low_keys_ ? low_keys_ + offset : nullptr;
    return {halves_[static_cast<int>(side)] + offset, low, head_dim(), capacity_ * head_dim()};
  }

  // Behind the rows that wait; where there is no room, these go first.
  void read(const PlannedPrompt& prompt, const Part& part, bool first) {
    if (waiting_ + part.tokens > capacity_) attend();
    const HalfRows keys = half_rows(Side::kKeys, waiting_), values = half_rows(Side::kValues, waiting_);
    const int64_t position = part.pieces.empty() ? 0 : part.pieces[0].position;
    parts_.push_back({prompt.request, {keys.high, keys.low, values.high, capacity_, part.tokens, position}, first});
    for (const Piece& piece : part.pieces) {
      if (piece.kind == Piece::Kind::kPages) {
        pages(prompt.view, piece);
      } else {
        rows(prompt.view, piece);
      }
      waiting_ += piece.tokens();
    }
  }

  void rows(const SequenceView& view, const Piece& piece) {
    const RowList list = row_list(piece.kind == Piece::Kind::kSinks ? view.sink_blocks : view.window_blocks);
    const int64_t count = piece.tokens();
    const Staging staging = {{halves_[0], halves_[1]}, capacity_};
    check(gather_rows(layer_.row_shape(), list, piece.begin, count, staging, waiting_, stream_), "reading rows");
    if (layer_.plan().turns) {
      const FloatRows out = {{rows_[0], nullptr}, head_dim(), count * head_dim()};
      check(read_rows(layer_.row_shape(), list, piece.begin, count, out, stream_), "reading rows");
      turn(view, count, piece.position);
      round(Side::kKeys, count);
    } else if (low_keys_) {
      const size_t line = static_cast<size_t>(head_dim()) * sizeof(uint16_t);
      check(cudaMemset2DAsync(half_rows(Side::kKeys, waiting_).low, static_cast<size_t>(capacity_) * line, 0,
                              static_cast<size_t>(count) * line, static_cast<size_t>(shape().kv_heads), stream_),
            "reading rows");
    }
  }

  void pages(const SequenceView& view, const Piece& piece) {
    const PageRun run = {view, piece.begin, piece.end};
    layer_.family().read_rows(run, rows_);
    if (layer_.plan().turns) turn(view, run.tokens(), piece.position);
    for (Side side : {Side::kKeys, Side::kValues}) {
      if (through_floats(layer_, side)) {
        round(side, run.tokens());
      } else {
        layer_.family().read_half_rows(run, side, half_rows(side, waiting_));
      }
    }
  }

  void round(Side side, int64_t count) {
    check(round_rows(layer_.row_shape(), rows_[static_cast<int>(side)], count, half_rows(side, waiting_), stream_),
          "rounding rows");
  }

  // Takes all rows that wait.
  void attend() {
    check(launch_prompt_parts(parts_.data(), static_cast<int>(parts_.size()), stream_), "attention");
    parts_.clear();
    waiting_ = 0;
  }

  // Tokens between two shifts have one offset.
  void turn(const SequenceView& view, int64_t tokens, int64_t position) {
    int64_t done = 0;
    while (done < tokens) {
      int64_t offset = 0, end = tokens;
      for (int i = 0; i < view.shift_count; ++i) {
        const int64_t first = view.shifts[i].first - position;
        if (first <= done) offset = view.shifts[i].offset;
        if (first > done) {
          end = std::min(end, first);
          break;
        }
      }
      KeyTurning turning = {};
      turning.keys = rows_[0];
      turning.kv_heads = shape().kv_heads;
      turning.head_dim = head_dim();
      turning.stride = tokens;
      turning.first = done;
      turning.count = end - done;
      turning.position = position + done + offset;
      turning.pairs = layer_.plan().attention.pairs;
      turning.frequencies = layer_.frequencies();
      turning.magnitude = layer_.plan().magnitude;
      check(launch_turn_keys(turning, stream_), "turning keys");
      done = end;
    }
  }

  const DeviceLayer& layer_;
  PlannedPrompt* const prompts_;
  const size_t count_;
  const cudaStream_t stream_;
  DeviceScratch states_, half_memory_, float_memory_[2];
  int64_t capacity_;               // rows of a kv head
  uint16_t* halves_[2];            // by side: [kv_heads][capacity_][head_dim]
  uint16_t* low_keys_;             // the same, or null
  float* rows_[2] = {};            // by side, where it goes through them: [kv_heads][tokens][head_dim]
  std::vector<PromptPart> parts_;  // that attention has yet to take
  int64_t waiting_ = 0;            // their rows
};

// Slices whose states go together.
void add_slices(const DeviceLayer& layer, const RowPrompt& prompt, std::vector<PlannedPrompt>& slices) {
  const PromptRequest& request = prompt.request;
  const int heads = request.kv_heads * request.group, most = std::max(kStatesAtOnce / heads, 1);
  const size_t token = static_cast<size_t>(heads) * static_cast<size_t>(request.head_dim) * element_bytes(request.type);
  for (int first = 0; first < request.tokens; first += most) {
    RowPrompt some = prompt;
    some.request.tokens = std::min(most, request.tokens - first);
    some.request.first_query += first;
    some.request.queries = static_cast<const uint8_t*>(request.queries) + static_cast<size_t>(first) * token;
    some.request.outputs = static_cast<uint8_t*>(request.outputs) + static_cast<size_t>(first) * token;
    if (request.ends.log_sums) {
      some.request.ends.log_sums += static_cast<size_t>(first) * static_cast<size_t>(heads);
    }
    if (request.masks) some.request.masks += first;
    slices.emplace_back(layer, some);
  }
}

}  // namespace

void attend_to_rows(const DeviceLayer& layer, const std::vector<RowPrompt>& prompts) {
  std::vector<PlannedPrompt> slices;
  for (const RowPrompt& prompt : prompts) add_slices(layer, prompt, slices);
  for (size_t begin = 0; begin < slices.size();) {
    size_t end = begin, bytes = 0;
    for (; end < slices.size(); ++end) {
      bytes += prompt_state_bytes(slices[end].request);
      if (end > begin && bytes > kStateBytes) break;
    }
    RowAttention(layer, slices.data() + begin, end - begin).run();
    begin = end;
  }
}

}  // namespace kvasir::cuda
