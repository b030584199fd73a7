#include "engine/cuda/layer_attention.h"

#include <string>

#include "engine/cuda/layer_state.h"
#include "engine/cuda/row_attention.h"
#include "engine/cuda/stream.h"
#include "kernels/cuda/rows/scale_queries.h"

namespace kvasir::cuda {

Engine::Tiles LayerAttention::run(const AttentionRequest& request, const QueryMemory& given, uint64_t epoch) {
  bring_up_to_date(request, epoch);
  QueryMemory memory = given;
  const DeviceScratch own = scaled(request, given, layer_.queue().stream);
  if (own) memory.queries = own.as<void>();
  Engine::Tiles tiles = {0, 0};
  for (int i = 0; i < request.count; ++i) {
    const Engine::Tiles each = tiles_of(request, i);
    tiles.computed += each.computed;
    tiles.fallback += each.fallback;
  }
  for (int first = 0; first < request.count;) {
    const QueryMemory rows = memory.from(*request.layer, request.runs[first].first);
    if (!fused(request, first)) {
      attend_rows(request, first++, rows);
      continue;
    }
    AttentionRequest some = request;
    some.sequences += first;
    some.runs += first;
    some.count = 1;
    while (first + some.count < request.count && fused(request, first + some.count)) {
      ++some.count;
      if (some.rows() <= kMostFusedRows) continue;
      --some.count;
      break;
    }
    layer_.family().attend(some, rows);
    first += some.count;
  }
  return tiles;
}

bool LayerAttention::fused(const AttentionRequest& request, int i) const {
  if (request.runs[i].masks || (request.layer->soft_cap > 0.0f && !layer_.family().caps())) return false;
  return layer_.family().attends(request.sequences[i], request.runs[i]);
}

// Chunks of prompts are best on rows; what fused kernels would take but for masks or caps, and single tokens, are not.
Engine::Tiles LayerAttention::tiles_of(const AttentionRequest& request, int i) const {
  const int64_t tiles = request.sequences[i].page_count * request.layer->kv_heads;
  const bool short_run = request.runs[i].tokens == 1 || layer_.family().attends(request.sequences[i], request.runs[i]);
  return {tiles, short_run && !fused(request, i) ? tiles : 0};
}

Engine::Tiles LayerAttention::capture(const AttentionRequest& request, const QueryMemory& given, uint64_t epoch,
                                      cudaStream_t stream) {
  if (!fused(request, 0) || !layer_.family().captures(request)) {
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
  const int64_t tokens = request.rows();
  const size_t elements = static_cast<size_t>(tokens) * layer.query_heads * static_cast<size_t>(layer.head_dim);
  DeviceScratch queries = layer_.queue().take(elements * element_bytes(memory.type));
  check(launch_scale_queries(memory.queries, queries.as<void>(), memory.type, tokens, layer.kv_heads, layer.group(),
                             layer.head_dim, layer_.key_scaling(), stream),
        "scaling queries");
  return queries;
}

void LayerAttention::attend_rows(const AttentionRequest& request, int i, const QueryMemory& memory) {
  const AttentionLayer& layer = *request.layer;
  const SequenceView& view = request.sequences[i];
  const QueryRun& run = request.runs[i];
  PromptRequest prompt = {};
  prompt.kv_heads = layer.kv_heads;
  prompt.group = layer.group();
  prompt.head_dim = layer.head_dim;
  prompt.tokens = run.tokens;
  prompt.type = memory.type;
  prompt.queries = memory.queries;
  prompt.outputs = memory.outputs;
  prompt.first_query = view.length - run.tokens;
  prompt.sliding_window = layer.sliding_window;
  prompt.scale = layer.softmax_scale;
  prompt.soft_cap = layer.soft_cap;
  prompt.ends = memory.ends;
  DeviceScratch masks;
  if (run.masks) {
    std::vector<PromptMask> list;
    for (int t = 0; t < run.tokens; ++t) list.push_back({run.masks[t], run.position(view.length, t)});
    masks = layer_.queue().uploaded(list, "uploading masks");
    prompt.masks = masks.as<PromptMask>();
    prompt.masked_from = view.length - run.tokens;
  }
  attend_to_rows(layer_, view, prompt);
}

}  // namespace kvasir::cuda
