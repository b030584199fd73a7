#include "engine/cuda/shared_row_attention.h"

#include <algorithm>

#include "engine/cuda/families/family.h"
#include "kernels/cuda/prompt/shared_rows.h"

namespace kvasir::cuda {
namespace {

// Pages that are unpacked together.
constexpr int64_t kPagesPerStep = 32;
// Query rows whose softmax states are kept at a time; for more of them pages are unpacked again.
constexpr int kStatesAtOnce = 1 << 14;

class SharedRowAttention {
 public:
  SharedRowAttention(const DeviceLayer& layer, const SequenceView& view, const PromptRequest& request)
      : layer_(layer),
        view_(view),
        request_(request),
        value_dim_(layer.plan().attention.value_dim),
        states_(layer.queue().take(shared_rows_state_bytes(request, value_dim_))) {
    request_.states = states_.as<float>();
    const int64_t pages = std::min(kPagesPerStep, view.page_count) * kPageTokens;
    const int64_t tokens = std::max<int64_t>({pages, view.sinks, view.window, 1});
    const size_t half = static_cast<size_t>(tokens) * static_cast<size_t>(request.head_dim / 2);
    rows_ = layer.queue().take(2 * half * sizeof(float));
    halves_[0] = rows_.as<float>();
    halves_[1] = halves_[0] + half;
  }

  void run() {
    rows(view_.sink_blocks, view_.sinks, 0);
    const int64_t window = view_.length - view_.window, page_position = window - view_.page_count * kPageTokens;
    // Pages that even the oldest query does not see any more are left out, and those that the newest does not yet.
    const int64_t oldest_query = request_.masks ? request_.masked_from : request_.first_query;
    const int64_t oldest = request_.sliding_window > 0 ? oldest_query - request_.sliding_window + 1 : 0;
    const int64_t newest = request_.masks ? view_.length - 1 : request_.first_query + request_.tokens - 1;
    const int64_t end = std::clamp<int64_t>((newest - page_position) / kPageTokens + 1, 0, view_.page_count);
    for (int64_t page = std::clamp<int64_t>((oldest - page_position) / kPageTokens, 0, end); page < end;) {
      int64_t next = page;
      while (next < end && next < page + kPagesPerStep && view_.pages[next]->shape == view_.pages[page]->shape) ++next;
      layer_.family().read_rows({view_, page, next}, halves_);
      attend((next - page) * kPageTokens, page_position + page * kPageTokens);
      page = next;
    }
    rows(view_.window_blocks, view_.window, window);
    check(launch_shared_rows_finish(request_, value_dim_, stream()), "attention");
  }

 private:
  cudaStream_t stream() const { return layer_.queue().stream; }

  void rows(const uint8_t* const* blocks, int count, int64_t position) {
    if (count > 0) {
      const int d = layer_.row_shape().head_dim;
      const FloatRows out = {{halves_[0], halves_[1]}, d, int64_t{count} * d};
      check(read_rows(layer_.row_shape(), row_list(blocks), 0, count, out, stream()), "reading rows");
    }
    attend(count, position);
  }

  void attend(int64_t tokens, int64_t position) {
    if (tokens == 0 && !first_) return;
    const SharedRows part = {{halves_[0], halves_[1]}, layer_.row_shape().kv_heads, tokens, tokens, position};
    check(launch_shared_rows_part(request_, value_dim_, part, first_, stream()), "attention");
    first_ = false;
  }

  const DeviceLayer& layer_;
  const SequenceView& view_;
  PromptRequest request_;
  const int value_dim_;
  const DeviceScratch states_;
  DeviceScratch rows_;
  float* halves_[2] = {};
  bool first_ = true;
};

}  // namespace

void attend_to_shared_rows(const DeviceLayer& layer, const SequenceView& view, const PromptRequest& request) {
  const AttentionLayer& attention = layer.plan().attention;
  const int heads = request.group, most = std::max(kStatesAtOnce / heads, 1);
  const size_t bytes = static_cast<size_t>(heads) * element_bytes(request.type);
  for (int first = 0; first < request.tokens; first += most) {
    const auto before = static_cast<size_t>(first);
    PromptRequest some = request;
    some.tokens = std::min(most, request.tokens - first);
    some.first_query += first;
    some.queries = static_cast<const uint8_t*>(request.queries) + before * bytes * attention.row_dim;
    some.outputs = static_cast<uint8_t*>(request.outputs) + before * bytes * attention.value_dim;
    if (request.ends.log_sums) some.ends.log_sums += before * static_cast<size_t>(heads);
    if (request.masks) some.masks += first;
    SharedRowAttention(layer, view, some).run();
  }
}

}  // namespace kvasir::cuda
