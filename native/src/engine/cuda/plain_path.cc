#include "engine/cuda/plain_path.h"

#include <algorithm>
#include <vector>

#include "codecs/commvq/model.h"
#include "codecs/pattern/format.h"
#include "engine/cuda/status.h"
#include "kernels/cuda/commvq/rows.h"
#include "kernels/cuda/rows/finish.h"
#include "kernels/cuda/rows/unpack.h"
#include "kernels/cuda/tiered/rows.h"

namespace kvasir::cuda {
namespace {

// Float16 rows that attention takes in one launch: few launches, and memory that does not grow with the context.
constexpr int64_t kRowsPerPart = 8192;
// Pages that are decoded to float32 together, where they must be.
constexpr int64_t kPagesPerStep = 32;
// Query rows whose softmax states are kept at a time; for more of them pages are decoded again.
constexpr int kStatesAtOnce = 1 << 16;

class PlainPath {
 public:
  PlainPath(const DeviceLayer& layer, const SequenceView& view, const PromptRequest& request, DeviceArena& arena,
            cudaStream_t stream)
      : layer_(layer),
        plan_(layer.plan()),
        view_(view),
        request_(request),
        arena_(arena),
        stream_(stream),
        states_(arena, prompt_state_bytes(request)) {
    request_.precision = precision();
    request_.states = states_.as<float>();
    capacity_ = std::min<int64_t>(kRowsPerPart, view.sinks + view.page_count * kPageTokens + view.window);
    capacity_ = std::max<int64_t>({capacity_, kPageTokens, view.sinks, view.window});
    const size_t side = static_cast<size_t>(capacity_) * row();
    const int sides = has_low_keys(request_.precision) ? 3 : 2;
    half_memory_ = DeviceScratch(arena, sides * side * sizeof(uint16_t));
    halves_[0] = half_memory_.as<uint16_t>();
    halves_[1] = halves_[0] + side;
    low_keys_ = sides == 3 ? halves_[1] + side : nullptr;
    const int64_t floats = std::max<int64_t>({kPagesPerStep * kPageTokens, view.sinks, view.window});
    for (Side each : {Side::kKeys, Side::kValues}) {
      if (!through_floats(each)) continue;
      DeviceScratch& memory = float_memory_[static_cast<int>(each)];
      memory = DeviceScratch(arena, static_cast<size_t>(floats) * row() * sizeof(float));
      rows_[static_cast<int>(each)] = memory.as<float>();
    }
  }

  void run() {
    rows(0, view_.sinks, 0);
    // Pages that even the oldest query does not see any more, or not even the newest yet, are left out.
    const int64_t page_position = view_.length - view_.window - view_.page_count * kPageTokens;
    const int64_t newest = request_.first_query + request_.tokens - 1;
    const int64_t page_end = std::clamp<int64_t>((newest - page_position) / kPageTokens + 1, 0, view_.page_count);
    const int64_t oldest = request_.sliding_window > 0 ? request_.first_query - request_.sliding_window + 1 : 0;
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
    if (newest >= window_position) rows(view_.window_row, view_.window, window_position);
    attend();
    check(launch_prompt_finish(request_, stream_), "attention");
  }

 private:
  size_t row() const { return static_cast<size_t>(request_.kv_heads) * static_cast<size_t>(request_.head_dim); }

  // Rows of the codec f16 are float16 numbers, but for keys that are turned.
  PromptPrecision precision() const {
    const SideFormat* sides = layer_.sides(plan_.shapes[0]);
    const bool halves = sides[0].codec == StoredCodec::kFloat16 && sides[1].codec == StoredCodec::kFloat16;
    if (halves) return plan_.turns ? PromptPrecision::kTurnedHalves : PromptPrecision::kHalves;
    return plan_.attention.fast ? PromptPrecision::kFast : PromptPrecision::kExact;
  }

  // Whether something is to be done to decoded rows before they are rounded, or their decoder knows float32 alone.
  bool through_floats(Side side) const {
    return layer_.kind(side) != SideKind::kCodes || layer_.family() == PageFamily::kTiered ||
           (side == Side::kKeys && plan_.turns);
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

  void rows(int row, int count, int64_t position) {
    if (count == 0) return;
    const int64_t at = place(count, position);
    const RowTiles tiles = layer_.tiles(const_cast<uint8_t*>(view_.storage));
    const Staging staging = {{halves_[0], halves_[1]}, capacity_};
    check(gather_rows(layer_.row_shape(), tiles, layer_.tile_row(row), count, staging, at, stream_), "reading rows");
    if (plan_.turns) {
      const FloatRows out = {{rows_[0], nullptr}, request_.head_dim, int64_t{count} * request_.head_dim};
      check(read_rows(layer_.row_shape(), tiles, layer_.tile_row(row), count, out, stream_), "reading rows");
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
    const int64_t count = (end - begin) * kPageTokens, at = place(count, position);
    if (layer_.family() == PageFamily::kTiered) {
      decode_tiers(begin, end);
    } else {
      for (Side side : {Side::kKeys, Side::kValues}) {
        if (through_floats(side)) decode(side, begin, end);
      }
    }
    if (plan_.turns) turn(count, position);
    for (Side side : {Side::kKeys, Side::kValues}) {
      if (through_floats(side)) {
        round(side, count, at);
      } else {
        decode_halves(side, begin, end, at);
      }
    }
  }

  void round(Side side, int64_t count, int64_t at) {
    check(round_rows(layer_.row_shape(), rows_[static_cast<int>(side)], count, half_rows(side, at), stream_),
          "rounding rows");
  }

  // Of all rows that wait.
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

  // Both sides of pages of PageFamily::kTiered.
  void decode_tiers(int64_t begin, int64_t end) {
    const DeviceScratch list = page_list(begin, end);
    const PageFormat(&formats)[2] = plan_.attention.formats;
    check(launch_tiered_rows(
              {formats[0], formats[1], request_.kv_heads, list.as<const uint8_t*>(), end - begin, {rows_[0], rows_[1]}},
              stream_),
          "decoding pages");
  }

  // Where the side begins in each page: only pages of varying parts need to be asked.
  std::vector<const uint8_t*> addresses_of(Side side, int64_t begin, int64_t end) const {
    std::vector<const uint8_t*> addresses;
    for (int64_t i = begin; i < end; ++i) {
      const PageView& page = *view_.pages[i];
      addresses.push_back(page.data + (page.shape->varies() ? page.part_offset(side, 0) : 0));
    }
    return addresses;
  }

  void decode_halves(Side side, int64_t begin, int64_t end, int64_t at) {
    const std::vector<const uint8_t*> addresses = addresses_of(side, begin, end);
    const int index = static_cast<int>(side);
    UnpackHalfRowsRequest request = {};
    request.shape = layer_.row_shape();
    request.sides[index] = layer_.sides(*view_.pages[begin]->shape)[index];
    request.pages = addresses.data();
    request.page_count = end - begin;
    request.out[index] = half_rows(side, at);
    check(unpack_half_rows(request, stream_), "decoding pages");
  }

  void decode(Side side, int64_t begin, int64_t end) {
    const int index = static_cast<int>(side);
    const PageShape& shape = *view_.pages[begin]->shape;
    const PageFormat& format = shape.formats[index];
    const int64_t count = end - begin;
    const SideFormat stored = layer_.sides(shape)[index];
    const std::vector<const uint8_t*> addresses = addresses_of(side, begin, end);
    switch (layer_.kind(side)) {
      case SideKind::kCodes:
      case SideKind::kPattern: {
        UnpackRowsRequest request = {};
        request.shape = layer_.row_shape();
        request.sides[index] = stored;
        request.pages = addresses.data();
        request.page_count = count;
        request.out = {{nullptr, nullptr}, request_.head_dim, count * kPageTokens * request_.head_dim};
        request.out.sides[index] = rows_[index];
        check(unpack_rows(request, stream_), "decoding pages");
        if (layer_.kind(side) == SideKind::kPattern) add_patterns(side, begin, addresses, stored);
        return;
      }
      case SideKind::kTiered: {
        const DeviceScratch list = page_list(begin, end);
        check(launch_tiered_key_rows(format, request_.kv_heads, {list.as<const uint8_t*>(), count, 0, rows_[index]},
                                     stream_),
              "decoding pages");
        return;
      }
      case SideKind::kCommVq: {
        const DeviceScratch list = upload(addresses);
        const int64_t offset = shape.varies() ? 0 : static_cast<int64_t>(shape.part_offset(side, 0));
        const RowDecoding decoding = {list.as<const uint8_t*>(), count, offset, rows_[index]};
        if (side == Side::kKeys) {
          const auto& model = static_cast<const commvq::KeyModel&>(*format.model);
          check(launch_commvq_key_rows(model.page, model.head_dim, model.pairs, layer_.plain_tables(side), decoding,
                                       stream_),
                "decoding pages");
        } else {
          const auto& model = static_cast<const commvq::ValueModel&>(*format.model);
          check(launch_commvq_value_rows(model.page, model.kv_heads, model.head_dim, layer_.plain_tables(side),
                                         decoding, stream_),
                "decoding pages");
        }
        return;
      }
    }
  }

  void add_patterns(Side side, int64_t begin, const std::vector<const uint8_t*>& addresses, const SideFormat& stored) {
    const DeviceScratch list = upload(addresses);
    LabelledRows rows = {};
    rows.rows = rows_[static_cast<int>(side)];
    rows.stride = static_cast<int64_t>(addresses.size()) * kPageTokens;
    rows.kv_heads = request_.kv_heads;
    rows.head_dim = request_.head_dim;
    rows.side = side;
    rows.pages = list.as<const uint8_t*>();
    rows.page_count = static_cast<int64_t>(addresses.size());
    rows.first_page = begin;
    rows.fragments = stored.fragments;
    rows.label_offset =
        stored.fragments ? 0 : stored.offset + static_cast<int64_t>(pattern::labels_offset(stored.format));
    rows.label_stride = stored.stride;
    rows.table = static_cast<const CudaLayerState*>(view_.state)->table(side);
    check(launch_add_labelled_vectors(rows, stream_), "adding patterns");
  }

  DeviceScratch page_list(int64_t begin, int64_t end) {
    std::vector<const uint8_t*> addresses;
    for (int64_t i = begin; i < end; ++i) addresses.push_back(view_.pages[i]->data);
    return upload(addresses);
  }

  DeviceScratch upload(const std::vector<const uint8_t*>& addresses) {
    DeviceScratch list(arena_, addresses.size() * sizeof(uint8_t*));
    check(cudaMemcpyAsync(list.as<void>(), addresses.data(), list.bytes(), cudaMemcpyHostToDevice, stream_),
          "uploading a list of pages");
    return list;
  }

  const DeviceLayer& layer_;
  const LayerPlan& plan_;
  const SequenceView& view_;
  PromptRequest request_;
  DeviceArena& arena_;
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

void attend_plainly(const DeviceLayer& layer, const SequenceView& view, const PromptRequest& request,
                    DeviceArena& arena, cudaStream_t stream) {
  const int heads = request.kv_heads * request.group, most = std::max(kStatesAtOnce / heads, 1);
  const size_t number = request.type == ElementType::kFloat32 ? sizeof(float) : sizeof(uint16_t);
  const size_t token = static_cast<size_t>(heads) * static_cast<size_t>(request.head_dim) * number;
  for (int first = 0; first < request.tokens; first += most) {
    PromptRequest some = request;
    some.tokens = std::min(most, request.tokens - first);
    some.first_query += first;
    some.queries = static_cast<const uint8_t*>(request.queries) + static_cast<size_t>(first) * token;
    some.outputs = static_cast<uint8_t*>(request.outputs) + static_cast<size_t>(first) * token;
    PlainPath(layer, view, some, arena, stream).run();
  }
}

}  // namespace kvasir::cuda
