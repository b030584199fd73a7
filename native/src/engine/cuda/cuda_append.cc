#include "engine/cuda/cuda_append.h"

#include <algorithm>

#include "engine/cuda/layer_state.h"

namespace kvasir::cuda {

int64_t CudaAppend::new_sinks() const { return std::clamp<int64_t>(plan_.sinks - before_.length, 0, tokens_); }

size_t CudaAppend::side_halves() const {
  return static_cast<size_t>(staged_.staging.rows) * plan_.attention.kv_heads * plan_.attention.head_dim;
}

void CudaAppend::open(const SequenceView& before, int64_t pages) {
  before_ = before;
  staged_.count = pages;
  if (pages == 0) return;
  const int64_t sinks = new_sinks();
  const cudaStream_t stream = layer_.queue().stream;
  Staging& staging = staged_.staging;
  staging.rows = before.window + tokens_ - sinks;
  staging_memory_ = layer_.queue().take(2 * side_halves() * sizeof(uint16_t));
  staging.sides[0] = staging_memory_.as<uint16_t>();
  staging.sides[1] = staging.sides[0] + side_halves();
  if (before.window > 0) {
    check(gather_rows(layer_.row_shape(), row_list(before.window_blocks), 0, before.window, staging, 0, stream),
          "gathering the window");
  }
  check(stage_rows(layer_.row_shape(), input_, sinks, tokens_ - sinks, staging, before.window, stream), "staging rows");
}

void CudaAppend::rows(Side side, int kv_head, int64_t first, int64_t count, float* out, int stride) const {
  std::call_once(downloaded_, [this] {
    halves_.resize(2 * side_halves());
    layer_.queue().download(halves_.data(), staging_memory_.as<void>(), halves_.size() * sizeof(uint16_t),
                            "reading rows back");
  });
  const auto d = static_cast<size_t>(plan_.attention.head_dim);
  const int64_t begin = (before_.first_page + before_.page_count) * kPageTokens;
  const uint16_t* head = halves_.data() + (side == Side::kValues ? side_halves() : 0) +
                         static_cast<size_t>(kv_head) * staged_.staging.rows * d;
  for (int64_t i = 0; i < count; ++i) {
    plan_.attention.rows->from_half(head + static_cast<size_t>(first + i - begin) * d, d,
                                    out + static_cast<size_t>(i) * stride);
  }
}

bool CudaAppend::lay_out(const SeenQueries& queries, PartHeads& heads) {
  return layer_.family().lay_out(staged_, queries, heads);
}

bool CudaAppend::grow(Side side, SealInput& input, SideTable& table, LayerState* state) {
  return layer_.family().grow(staged_, side, input, table, static_cast<CudaLayerState&>(*state));
}

void CudaAppend::seal(const std::vector<NewPage>& pages, const PartHeads& heads, const SideTable (&tables)[2],
                      LayerState* state) {
  const auto encode_here = [&](int64_t page, Side side, int kv_head, uint8_t* out) {
    const int index = static_cast<int>(side);
    encode_part(pages[static_cast<size_t>(page)], side, kv_head, heads.head(plan_.attention, page, index, kv_head),
                tables[index], out);
  };
  layer_.family().seal(staged_, {pages, tables, static_cast<const CudaLayerState&>(*state), encode_here});
}

void CudaAppend::fill(uint8_t* const* sink_blocks, uint8_t* const* window_blocks) {
  const int64_t sinks = new_sinks();
  const cudaStream_t stream = layer_.queue().stream;
  check(append_rows(layer_.row_shape(), input_, 0, sinks, sink_blocks, before_.length, stream), "appending sinks");
  // The tokens up to there went into pages.
  const int64_t window =
      plan_.sinks + (before_.first_page + before_.page_count + staged_.count) * kPageTokens - before_.length;
  const int64_t first = std::min(std::max(sinks, window), tokens_);  // none where the append ends among the sinks
  check(append_rows(layer_.row_shape(), input_, first, tokens_ - first, window_blocks,
                    std::max<int64_t>(0, first - window), stream),
        "appending rows");
}

}  // namespace kvasir::cuda
