#include "engine/cuda/layer_attention.h"

#include <string>

#include "engine/cuda/layer_state.h"
#include "engine/cuda/row_attention.h"
#include "engine/cuda/stream.h"
#include "kernels/cuda/rows/scale_queries.h"

namespace kvasir::cuda {

Engine::Tiles LayerAttention::run(const AttentionRequest& request, const QueryMemory& given, uint64_t epoch) {
  const int64_t tiles = bring_up_to_date(request, epoch);
  QueryMemory memory = given;
  const DeviceScratch own = scaled(request, given, layer_.queue().stream);
  if (own) memory.queries = own.as<void>();
  if (layer_.family().attends(request)) {
    layer_.family().attend(request, memory);
    return {tiles, 0};
  }
  attend_rows(request, memory);
  return {tiles, request.tokens > 1 ? 0 : tiles};
}

Engine::Tiles LayerAttention::capture(const AttentionRequest& request, const QueryMemory& given, uint64_t epoch,
                                      cudaStream_t stream) {
  if (!layer_.family().captures(request)) {
    throw Error(ErrorCode::kInvalidArgument, "only one query token of up to " + std::to_string(kInlineSequences) +
                                                 " sequences, in a layer of head blocks, can be captured in a graph");
  }
  const RelaxedCapture relaxed;
  const int64_t tiles = bring_up_to_date(request, epoch);
  QueryMemory memory = given;
  DeviceScratch own = scaled(request, given, stream);
  if (own) memory.queries = own.as<void>();
  layer_.family().capture(request, memory, stream);
  if (own) captured_.push_back(std::move(own));
  return {tiles, 0};
}

// Returns the tiles of pages. Pages may have shrunk since their sequence was last described.
int64_t LayerAttention::bring_up_to_date(const AttentionRequest& request, uint64_t epoch) {
  int64_t tiles = 0;
  for (int i = 0; i < request.count; ++i) {
    const SequenceView& view = request.sequences[i];
    auto* state = static_cast<CudaLayerState*>(view.state);
    if (state->epoch() != epoch) state->update(view, epoch);
    tiles += view.page_count * request.layer->kv_heads;
  }
  return tiles;
}

DeviceScratch LayerAttention::scaled(const AttentionRequest& request, const QueryMemory& memory, cudaStream_t stream) {
  if (!layer_.key_scaling()) return {};
  const AttentionLayer& layer = *request.layer;
  const int64_t tokens = int64_t{request.count} * request.tokens;
  const size_t elements = static_cast<size_t>(tokens) * layer.query_heads * static_cast<size_t>(layer.head_dim);
  DeviceScratch queries = layer_.queue().take(elements * element_bytes(memory.type));
  check(launch_scale_queries(memory.queries, queries.as<void>(), memory.type, tokens, layer.kv_heads, layer.group(),
                             layer.head_dim, layer_.key_scaling(), stream),
        "scaling queries");
  return queries;
}

void LayerAttention::attend_rows(const AttentionRequest& request, const QueryMemory& memory) {
  const AttentionLayer& layer = *request.layer;
  const size_t row = static_cast<size_t>(request.tokens) * layer.query_heads * static_cast<size_t>(layer.head_dim) *
                     element_bytes(memory.type);
  for (int i = 0; i < request.count; ++i) {
    const SequenceView& view = request.sequences[i];
    PromptRequest prompt = {};
    prompt.kv_heads = layer.kv_heads;
    prompt.group = layer.group();
    prompt.head_dim = layer.head_dim;
    prompt.tokens = request.tokens;
    prompt.type = memory.type;
    prompt.queries = static_cast<const uint8_t*>(memory.queries) + i * row;
    prompt.outputs = static_cast<uint8_t*>(memory.outputs) + i * row;
    prompt.first_query = view.length - request.tokens;
    prompt.sliding_window = layer.sliding_window;
    prompt.scale = layer.softmax_scale;
    attend_to_rows(layer_, view, prompt);
  }
}

}  // namespace kvasir::cuda
