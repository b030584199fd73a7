#include "engine/cuda/plain_path.h"

#include <algorithm>
#include <vector>

#include "codecs/commvq/model.h"
#include "codecs/pattern/format.h"
#include "engine/cuda/status.h"
#include "kernels/cuda/decode_rows.h"
#include "kernels/cuda/row_decoders.h"
#include "kernels/cuda/tiered_rows.h"

namespace kvasir::cuda {
namespace {

// Pages that are decoded together: few launches, and little memory.
constexpr int64_t kPagesPerChunk = 32;

class PlainPath {
 public:
  PlainPath(const DeviceLayer& layer, const SequenceView& view, const PlainRequest& request, DeviceArena& arena,
            cudaStream_t stream)
      : layer_(layer),
        plan_(layer.plan()),
        view_(view),
        request_(request),
        arena_(arena),
        stream_(stream),
        states_(arena, plain_state_bytes(request)) {
    request_.states = states_.as<float>();
    const int64_t rows = std::max<int64_t>({kPagesPerChunk * kPageTokens, view.sinks, view.window});
    const size_t side = static_cast<size_t>(rows) * request.kv_heads * request.head_dim;
    memory_ = DeviceScratch(arena, 2 * side * sizeof(float));
    rows_[0] = memory_.as<float>();
    rows_[1] = rows_[0] + side;
  }

  void run() {
    rows(0, view_.sinks, 0);
    // Pages that even the oldest query does not see any more are left out.
    const int64_t page_position = view_.length - view_.window - view_.page_count * kPageTokens;
    const int64_t oldest = request_.sliding_window > 0 ? request_.first_query - request_.sliding_window + 1 : 0;
    int64_t page = std::clamp<int64_t>((oldest - page_position) / kPageTokens, 0, view_.page_count);
    while (page < view_.page_count) {
      int64_t end = page;
      while (end < view_.page_count && end < page + kPagesPerChunk &&
             view_.pages[end]->shape == view_.pages[page]->shape) {
        ++end;
      }
      pages(page, end, page_position + page * kPageTokens);
      page = end;
    }
    rows(view_.window_row, view_.window, view_.length - view_.window);
    check(launch_plain_finish(request_, stream_), "attention");
  }

 private:
  void rows(int row, int count, int64_t position) {
    const int64_t head_stride = int64_t{count} * request_.head_dim;
    const FloatRows out = {{rows_[0], rows_[1]}, request_.head_dim, head_stride};
    check(read_rows(layer_.row_shape(), layer_.tiles(const_cast<uint8_t*>(view_.storage)), layer_.tile_row(row), count,
                    out, stream_),
          "reading rows");
    attend(count, position);
  }

  void pages(int64_t begin, int64_t end, int64_t position) {
    if (layer_.family() == PageFamily::kTiered) {
      decode_tiers(begin, end);
    } else {
      for (Side side : {Side::kKeys, Side::kValues}) decode(side, begin, end);
    }
    attend((end - begin) * kPageTokens, position);
  }

  void attend(int64_t tokens, int64_t position) {
    if (tokens == 0 && !first_) return;
    if (plan_.turns) turn(tokens, position);
    check(launch_plain_chunk(request_, {rows_[0], rows_[1], tokens, tokens, position}, first_, stream_), "attention");
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

  void decode(Side side, int64_t begin, int64_t end) {
    const int index = static_cast<int>(side);
    const PageShape& shape = *view_.pages[begin]->shape;
    const PageFormat& format = shape.formats[index];
    const int64_t count = end - begin;
    // Where the side begins in each page: only pages of varying parts need to be asked.
    SideFormat stored = layer_.sides(shape)[index];
    std::vector<const uint8_t*> addresses;
    for (int64_t i = begin; i < end; ++i) {
      const PageView& page = *view_.pages[i];
      addresses.push_back(page.data + (shape.varies() ? page.part_offset(side, 0) : 0));
    }
    switch (layer_.kind(side)) {
      case SideKind::kCodes:
      case SideKind::kPattern: {
        DecodeRowsRequest request = {};
        request.shape = layer_.row_shape();
        request.sides[index] = stored;
        request.pages = addresses.data();
        request.page_count = count;
        request.out = {{nullptr, nullptr}, request_.head_dim, count * kPageTokens * request_.head_dim};
        request.out.sides[index] = rows_[index];
        check(decode_rows(request, stream_), "decoding pages");
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
  PlainRequest request_;
  DeviceArena& arena_;
  const cudaStream_t stream_;
  const DeviceScratch states_;
  DeviceScratch memory_;
  float* rows_[2];  // [kv_heads][tokens][head_dim]
  bool first_ = true;
};

}  // namespace

void attend_plainly(const DeviceLayer& layer, const SequenceView& view, PlainRequest request, DeviceArena& arena,
                    cudaStream_t stream) {
  PlainPath(layer, view, request, arena, stream).run();
}

}  // namespace kvasir::cuda
