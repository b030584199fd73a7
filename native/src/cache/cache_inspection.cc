#include <algorithm>
#include <string>

#include "base/checks.h"
#include "cache/cache_impl.h"

namespace kvasir {
namespace {

void check_side(Side side) {
  if (side != Side::kKeys && side != Side::kValues) refuse("side " + std::to_string(static_cast<int>(side)));
}

void check_head(const LayerPlan& plan, int kv_head) {
  if (kv_head < 0 || kv_head >= plan.attention.kv_heads) {
    refuse("kv head " + std::to_string(kv_head) + " of " + std::to_string(plan.attention.kv_heads));
  }
}

}  // namespace

void Cache::Impl::read(int64_t id, int layer, Side side, int64_t first, int64_t tokens, float* out) {
  const ThreadPool::Use threads = use_threads();
  const LayerPlan& plan = rows_plan_of(layer);
  check_side(side);
  require_pointer("out", out);
  const auto sequence = find(id);
  float* scratch = page_scratch();
  std::shared_lock<FairSharedMutex> lock(sequence->mutex);
  const SequenceLayer& each = sequence->layers[plan.index];
  if (first < 0 || tokens < 1 || tokens > each.length() || first > each.length() - tokens) {
    refuse("rows " + std::to_string(first) + " and " + std::to_string(tokens) + " on of a layer that holds " +
           std::to_string(each.length()));
  }
  if (first < each.first_held(plan) && first + tokens > plan.sinks) {
    refuse("the sliding window of layer " + std::to_string(layer) + " left the rows before " +
           std::to_string(each.first_held(plan)) + " behind, asked for " + std::to_string(first));
  }
  const auto pages = memory_.read(plan.index);
  if (plan.attention.latent()) return read_shared(plan, each, side, first, tokens, out, scratch);
  each.read(plan, engine(), side, first, tokens, out, scratch);
  if (side == Side::kKeys && !plan.key_scaling.empty()) {
    const size_t row = plan.key_scaling.size();
    for (size_t i = 0; i < static_cast<size_t>(tokens) * row; ++i) out[i] *= plan.key_scaling[i % row];
  }
}

void Cache::Impl::read_shared(const LayerPlan& plan, const SequenceLayer& layer, Side side, int64_t first,
                              int64_t tokens, float* out, float* scratch) {
  const size_t half = static_cast<size_t>(plan.elements_per_token()) / 2;
  const auto row = static_cast<size_t>(side == Side::kKeys ? plan.attention.row_dim : plan.attention.value_dim);
  std::vector<float> rows(static_cast<size_t>(tokens) * half);
  for (size_t stored = 0; stored < 2; ++stored) {
    const size_t begin = stored * half, end = std::min(row, begin + half);
    if (begin >= end) continue;
    layer.read(plan, engine(), static_cast<Side>(stored), first, tokens, rows.data(), scratch);
    for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
      std::copy_n(rows.data() + t * half, end - begin, out + t * row + begin);
    }
  }
}

int64_t Cache::Impl::page_count(int64_t id, int layer) {
  const LayerPlan& plan = rows_plan_of(layer);
  const auto sequence = find(id);
  std::shared_lock<FairSharedMutex> lock(sequence->mutex);
  return sequence->layers[plan.index].page_count();
}

int64_t Cache::Impl::read_page(int64_t id, int layer, int64_t page, Side side, int kv_head, uint8_t* out,
                               int64_t capacity) {
  const LayerPlan& plan = rows_plan_of(layer);
  check_side(side);
  check_head(plan, kv_head);
  const auto sequence = find(id);
  std::shared_lock<FairSharedMutex> lock(sequence->mutex);
  const SequenceLayer& each = sequence->layers[plan.index];
  if (page < 0 || page >= each.page_count()) {
    refuse("page " + std::to_string(page) + " of " + std::to_string(each.page_count()));
  }
  const auto pages = memory_.read(plan.index);
  const auto bytes = static_cast<int64_t>(each.page(page).part_bytes(side, kv_head));
  if (capacity < bytes) return bytes;
  require_pointer("out", out);
  const uint8_t* part = engine().part(plan, each.page(page), side, kv_head);
  std::copy(part, part + bytes, out);
  return bytes;
}

int64_t Cache::Impl::table_size(int64_t id, int layer, Side side) {
  const LayerPlan& plan = rows_plan_of(layer);
  check_side(side);
  const auto sequence = find(id);
  std::shared_lock<FairSharedMutex> lock(sequence->mutex);
  return sequence->layers[plan.index].table(side).size();
}

int64_t Cache::Impl::read_table(int64_t id, int layer, Side side, int kv_head, float* out, int64_t capacity) {
  const LayerPlan& plan = rows_plan_of(layer);
  check_side(side);
  check_head(plan, kv_head);
  const auto sequence = find(id);
  std::shared_lock<FairSharedMutex> lock(sequence->mutex);
  const auto d = static_cast<size_t>(plan.attention.head_dim);
  const auto vectors = side_vectors(sequence->layers[plan.index].table(side), kv_head, plan.attention.head_dim);
  const auto count = static_cast<int64_t>(vectors.size());
  if (capacity < count) return count;
  if (count > 0) require_pointer("out", out);
  for (size_t i = 0; i < vectors.size(); ++i) plan.attention.rows->from_half(vectors[i], d, out + i * d);
  return count;
}

std::unique_ptr<CacheStats::Impl> Cache::Impl::stats() {
  auto stats = std::make_unique<CacheStats::Impl>();
  stats->layers.resize(plans_.size());
  std::vector<std::shared_ptr<Sequence>> sequences;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [id, sequence] : sequences_) sequences.push_back(sequence);
  }
  std::set<const PageView*> counted;
  Pool& pool = memory_.pool();
  for (const auto& sequence : sequences) {
    std::shared_lock<FairSharedMutex> lock(sequence->mutex);
    for (const LayerPlan& plan : plans_) {
      const SequenceLayer& layer = sequence->layers[plan.index];
      stats->layers[plan.index].elements += (layer.length() - layer.first_held(plan)) * plan.elements_per_token();
      const auto pages = memory_.read(plan.index);
      count_parts(plan, layer, counted, stats->layers[plan.index]);
    }
  }
  for (const LayerPlan& plan : plans_) {
    LayerStats& layer = stats->layers[plan.index];
    const Pool::Usage pages = pool.usage(plan.index, BlockKind::kPage);
    layer.pages = pages.blocks;
    layer.page_bytes = pages.bytes;
    layer.page_elements = pages.blocks * kPageTokens * plan.elements_per_token();
    layer.window_bytes = pool.usage(plan.index, BlockKind::kRows).bytes;
    layer.table_bytes = pool.usage(plan.index, BlockKind::kSideTable).bytes;
    for (const auto& model : plan.models) {
      if (!model) continue;
      const PageModel::Codebook codebook = model->codebook();
      layer.codebooks[codebook.identity] = codebook.bytes;
    }
    layer.shrinks = memory_.shrinks(plan.index);
    layer.steps = memory_.steps(plan.index);
  }
  stats->sequences = static_cast<int64_t>(sequences.size());
  stats->budget = pool.budget();
  stats->bytes = pool.bytes();
  stats->peak_bytes = pool.peak_bytes();
  stats->backend = engine().name();
  stats->tiles = tiles_;
  stats->fallback_tiles = fallback_tiles_;
  return stats;
}

void Cache::Impl::count_parts(const LayerPlan& plan, const SequenceLayer& layer, std::set<const PageView*>& counted,
                              LayerStats& stats) {
  for (int64_t i = 0; i < layer.page_count(); ++i) {
    const PageView& page = layer.page(i);
    if (!counted.insert(&page).second) continue;
    for (Side side : {Side::kKeys, Side::kValues}) {
      const int index = static_cast<int>(side);
      stats.parts[index] += plan.attention.kv_heads;
      const Codec& codec = *plan.codecs[index];
      for (int head = 0; head < plan.attention.kv_heads; ++head) {
        stats.part_bytes[index] += static_cast<int64_t>(page.part_bytes(side, head)) / page.format(side).heads;
        if (codec.count_widths) {
          codec.count_widths(page.format(side), engine().part_widths(plan, page, side, head), stats.channels[index]);
        } else {
          stats.channels[index][page.format(side).bits] += plan.attention.head_dim;
        }
        if (!codec.labelled) continue;
        const int tokens = codec.labelled(page.format(side), engine().part(plan, page, side, head));
        stats.parts_without_table[index] += tokens == 0;
        stats.labelled_tokens[index] += tokens;
      }
    }
  }
}

}  // namespace kvasir
