#include "engine/cuda/layer_attention.h"

#include <string>

#include "engine/cuda/layer_state.h"
#include "engine/cuda/row_attention.h"
#include "engine/cuda/shared_row_attention.h"
#include "engine/cuda/stream.h"
#include "kernels/cuda/rows/merge_results.h"
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
    const Way way = way_of(request, first);
    AttentionRequest some = request;
    some.sequences += first;
    some.runs += first;
    some.count = 1;
    FusedGroup group;
    joins(request, first, group);
    while (first + some.count < request.count && way_of(request, first + some.count) == way &&
           (way == Way::kRows || joins(request, first + some.count, group))) {
      ++some.count;
    }
    switch (way) {
      case Way::kFused:
        layer_.family().attend(some, rows);
        break;
      case Way::kTree:
        attend_trees(some, rows);
        break;
      case Way::kRows:
        attend_rows(some, rows, false);
        break;
    }
    first += some.count;
  }
  return tiles;
}

LayerAttention::Way LayerAttention::way_of(const AttentionRequest& request, int i) const {
  if (request.layer->latent()) return Way::kRows;
  const PageFamily& family = layer_.family();
  const bool capped = request.layer->soft_cap > 0.0f;
  if ((capped && !family.caps()) || !family.attends(request.sequences[i], request.runs[i])) return Way::kRows;
  return request.runs[i].masks ? Way::kTree : Way::kFused;
}

bool LayerAttention::joins(const AttentionRequest& request, int i, FusedGroup& group) const {
  const SequenceView& view = request.sequences[i];
  return group.takes(request.runs[i].tokens, view.page_count + layer_.row_blocks(), request.layer->query_heads);
}

// Chunks of prompts are best on rows; what fused kernels would take but for caps, and single tokens, are not.
Engine::Tiles LayerAttention::tiles_of(const AttentionRequest& request, int i) const {
  const int64_t tiles = request.sequences[i].page_count * request.layer->attended_heads();
  if (request.layer->latent()) return {tiles, tiles};
  const bool short_run = request.runs[i].tokens == 1 || layer_.family().attends(request.sequences[i], request.runs[i]);
  return {tiles, short_run && way_of(request, i) == Way::kRows ? tiles : 0};
}

Engine::Tiles LayerAttention::capture(const AttentionRequest& request, const QueryMemory& given, uint64_t epoch,
                                      cudaStream_t stream) {
  FusedGroup group;
  bool fits = true;
  for (int i = 0; i < request.count; ++i) fits = fits && joins(request, i, group);
  if (!fits || way_of(request, 0) != Way::kFused || !layer_.family().captures(request)) {
    throw Error(ErrorCode::kInvalidArgument,
                "only one query token of each sequence, that a fused kernel takes and no shift moves, can be captured, "
                "of up to " +
                    std::to_string(kMostFusedRows) + " sequences (commvq " + std::to_string(kInlineSequences) + ")");
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

void LayerAttention::attend_trees(const AttentionRequest& request, const QueryMemory& memory) {
  const AttentionLayer& layer = *request.layer;
  const DeviceQueue& queue = layer_.queue();
  const auto rows = static_cast<size_t>(request.rows()) * static_cast<size_t>(layer.query_heads);
  const DeviceScratch others = queue.take(rows * static_cast<size_t>(layer.head_dim) * element_bytes(memory.type));
  const DeviceScratch sums = queue.take(2 * rows * sizeof(float));
  QueryMemory past = memory, trees = memory;
  past.ends = {nullptr, sums.as<float>()};
  trees.outputs = others.as<void>();
  trees.ends = {memory.ends.sink_logits, sums.as<float>() + rows};  // learned sinks count once
  layer_.family().attend(request, past);
  attend_rows(request, trees, true);
  const ResultMerge merge = {
      static_cast<int64_t>(rows), layer.head_dim,      memory.type,         memory.outputs, trees.outputs,
      past.ends.log_sums,         trees.ends.log_sums, memory.ends.log_sums};
  check(launch_merge_results(merge, queue.stream), "merging attention");
}

void LayerAttention::attend_rows(const AttentionRequest& request, const QueryMemory& memory, bool among_themselves) {
  const AttentionLayer& layer = *request.layer;
  PromptRequest prompt = {};
  prompt.kv_heads = layer.attended_heads();
  prompt.group = layer.group();
  prompt.head_dim = layer.query_dim();
  prompt.type = memory.type;
  prompt.sliding_window = layer.sliding_window;
  prompt.scale = layer.softmax_scale;
  prompt.soft_cap = layer.soft_cap;
  std::vector<PromptMask> list;
  for (int i = 0; i < request.count; ++i) {
    const QueryRun& run = request.runs[i];
    for (int t = 0; run.masks && t < run.tokens; ++t) {
      list.push_back({run.masks[t], run.position(request.sequences[i].length, t)});
    }
  }
  DeviceScratch masks;
  if (!list.empty()) masks = layer_.queue().uploaded(list, "uploading masks");
  const PromptMask* next_mask = masks.as<PromptMask>();
  std::vector<RowPrompt> prompts;
  for (int i = 0; i < request.count; ++i) {
    const SequenceView& view = request.sequences[i];
    const QueryRun& run = request.runs[i];
    const QueryMemory own = memory.from(layer, run.first - request.runs[0].first);
    prompt.tokens = run.tokens;
    prompt.queries = own.queries;
    prompt.outputs = own.outputs;
    prompt.first_query = view.length - run.tokens;
    prompt.ends = own.ends;
    prompt.masks = run.masks ? next_mask : nullptr;
    prompt.masked_from = run.masks ? prompt.first_query : 0;
    if (run.masks) next_mask += run.tokens;
    prompts.push_back({&view, prompt, among_themselves ? prompt.masked_from : 0});
  }
  if (!layer.latent()) return attend_to_rows(layer_, prompts);
  for (const RowPrompt& each : prompts) attend_to_shared_rows(layer_, *each.view, each.request);
}

}  // namespace kvasir::cuda
