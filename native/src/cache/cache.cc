#include "kvasir/cache.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "base/aligned.h"
#include "base/checked.h"
#include "base/checks.h"
#include "base/fair_shared_mutex.h"
#include "base/half.h"
#include "base/row_views.h"
#include "base/scratch.h"
#include "cache/append_batch.h"
#include "cache/config.h"
#include "cache/layer.h"
#include "cache/memory.h"
#include "cache/plan.h"
#include "cache/query_batch.h"
#include "cache/stats.h"
#include "engine/engines.h"

namespace kvasir {
namespace {

struct Sequence {
  explicit Sequence(int layers) : layers(layers) {}
  FairSharedMutex mutex;  // writers alone, readers together
  std::mutex queries;     // what readers, too, write: the query means of its layers
  std::vector<SequenceLayer> layers;
  std::vector<PositionShift> shifts;  // ascending
};

}  // namespace

class Cache::Impl {
 public:
  explicit Impl(const CacheConfig::Impl& config)
      : engine_(make_engine(config.backend)),
        plans_(plan_layers(config, engine_.kernels)),
        memory_(plans_, *engine_.engine, config.budget, layer_budgets(config), config.shrink_policy) {
    engine().prepare(plans_);
  }

  int64_t new_sequence() { return add(std::make_shared<Sequence>(static_cast<int>(plans_.size()))); }

  int64_t fork(int64_t id) {
    const auto original = find(id);
    const auto copy = std::make_shared<Sequence>(static_cast<int>(plans_.size()));
    {
      std::unique_lock<FairSharedMutex> lock(original->mutex);
      std::vector<std::pair<int, Memory::Needs>> needs;
      for (const LayerPlan& plan : plans_) {
        SequenceLayer& layer = original->layers[plan.index];
        layer.end_promise();  // what was to be written in place is shared from now on
        needs.push_back({plan.index, {layer.bytes_to_fork()}});
      }
      memory_.check_room(needs);
      copy->shifts = original->shifts;
      std::lock_guard<std::mutex> queries(original->queries);
      for (const LayerPlan& plan : plans_)
        copy->layers[plan.index] = original->layers[plan.index].fork(plan, memory_, engine());
    }
    return add(copy);
  }

  void truncate(int64_t id, int64_t length) {
    if (length < 0) refuse("length must not be negative, it is " + std::to_string(length));
    const auto sequence = find(id);
    std::unique_lock<FairSharedMutex> lock(sequence->mutex);
    cut(*sequence, length);
  }

  int64_t rollback(int64_t id) {
    const auto sequence = find(id);
    std::unique_lock<FairSharedMutex> lock(sequence->mutex);
    int64_t length = std::numeric_limits<int64_t>::max();
    for (const LayerPlan& plan : plans_) {
      if (plan.owns_rows()) length = std::min(length, sequence->layers[plan.index].length());
    }
    cut(*sequence, length);
    return length;
  }

  void reserve(int64_t id, int64_t tokens) {
    if (tokens < 0 || tokens > kMostReserved) {
      refuse("tokens to reserve must be 0.." + std::to_string(kMostReserved) + ", not " + std::to_string(tokens));
    }
    const auto sequence = find(id);
    std::unique_lock<FairSharedMutex> lock(sequence->mutex);
    for (SequenceLayer& layer : sequence->layers) layer.end_promise();
    if (tokens == 0) return;
    std::vector<std::pair<int, Memory::Needs>> needs;
    for (const LayerPlan& plan : plans_) {
      if (plan.owns_rows()) needs.emplace_back(plan.index, sequence->layers[plan.index].most_needs(plan, tokens));
    }
    memory_.check_room(needs);
    std::vector<std::unique_ptr<Pool::Reservation>> rooms;
    for (const auto& [layer, each] : needs) {
      rooms.push_back(std::make_unique<Pool::Reservation>(memory_.make_room(layer, {each}).bytes));
    }
    for (size_t i = 0; i < rooms.size(); ++i) {
      sequence->layers[needs[i].first].promise(std::move(rooms[i]), tokens);
    }
  }

  void guess(int64_t id) {
    const auto sequence = find(id);
    std::unique_lock<FairSharedMutex> lock(sequence->mutex);
    even_length(id, *sequence);
    for (const SequenceLayer& layer : sequence->layers) {
      if (layer.guesses() > 0) refuse("sequence " + std::to_string(id) + " has guesses already");
    }
    for (SequenceLayer& layer : sequence->layers) layer.guess();
  }

  void keep(int64_t id, const int* kept, int count) {
    if (count < 0) refuse("the number of guesses must not be negative, it is " + std::to_string(count));
    if (count > 0) require_pointer("kept", kept);
    const std::vector<int> own(kept, kept + count);
    const auto sequence = find(id);
    std::unique_lock<FairSharedMutex> lock(sequence->mutex);
    const SequenceLayer& any = sequence->layers[even_length(id, *sequence)];
    if (!any.guessing()) refuse("sequence " + std::to_string(id) + " has no guesses");
    for (int i = 0; i < count; ++i) {
      if (own[i] < 0 || own[i] >= any.guesses() || (i > 0 && own[i] <= own[i - 1])) {
        refuse("guess " + std::to_string(own[i]) + " of " + std::to_string(any.guesses()) + ", listed as number " +
               std::to_string(i) + ", does not ascend or does not exist");
      }
    }
    std::vector<SequenceLayer::Kept> prepared;
    for (const LayerPlan& plan : plans_) {
      const SequenceLayer& layer = sequence->layers[plan.index];
      prepared.push_back(layer.prepare_keep(plan, memory_, engine(), own.data(), plan.owns_rows() ? count : 0));
    }
    for (const LayerPlan& plan : plans_) {
      sequence->layers[plan.index].keep(plan, engine(), std::move(prepared[plan.index]));
    }
    for (const LayerPlan& plan : plans_) seal_what_is_due(plan, sequence->layers[plan.index]);
  }

  void release(int64_t id) {
    std::shared_ptr<Sequence> released;  // freed outside the lock
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) unknown(id);
    released = std::move(found->second);
    sequences_.erase(found);
  }

  void shift(int64_t id, int64_t first, int64_t offset) {
    if (first < 0) refuse("the first token must not be negative, it is " + std::to_string(first));
    if (offset < -kMaxOffset || offset > kMaxOffset) refuse("an offset of " + std::to_string(offset));
    for (const LayerPlan& plan : plans_) {
      if (!plan.turns) {
        refuse("layer " + std::to_string(plan.index) + " stores keys after RoPE: their positions cannot change");
      }
    }
    const auto sequence = find(id);
    std::unique_lock<FairSharedMutex> lock(sequence->mutex);
    std::vector<PositionShift> shifts;
    int64_t before = 0;  // the offset at `first`
    for (const PositionShift& each : sequence->shifts) {
      if (each.first > first) break;
      before = each.offset;
      if (each.first < first) shifts.push_back(each);
    }
    shifts.push_back({first, before + offset});
    for (const PositionShift& each : sequence->shifts) {
      if (each.first > first) shifts.push_back({each.first, each.offset + offset});
    }
    for (const PositionShift& each : shifts) {
      if (each.offset < -kMaxOffset || each.offset > kMaxOffset) {
        refuse("offsets add up to " + std::to_string(each.offset));
      }
    }
    sequence->shifts = std::move(shifts);
  }

  int64_t length(int64_t id, int layer) {
    const LayerPlan& plan = rows_plan_of(layer);
    const auto sequence = find(id);
    std::shared_lock<FairSharedMutex> lock(sequence->mutex);
    return sequence->layers[plan.index].length();
  }

  void append(int64_t id, int layer, int64_t tokens, const TokenRows& rows) {
    if (tokens < 1) refuse("tokens must be positive, it is " + std::to_string(tokens));
    append(layer, &id, &tokens, 1, rows);
  }

  // The rows of sequence i are the next counts[i].
  void append(int layer, const int64_t* ids, const int64_t* counts, int count, TokenRows rows) {
    const LayerPlan& plan = plan_of(layer);
    if (!plan.owns_rows()) {
      refuse("layer " + std::to_string(layer) + " takes keys and values from layer " + std::to_string(plan.source) +
             ": they are appended there");
    }
    if (count < 1) refuse("the number of sequences must be positive, it is " + std::to_string(count));
    require_pointer("sequences", ids);
    require_pointer("counts", counts);
    std::vector<std::shared_ptr<Sequence>> sequences;
    std::vector<int64_t> tokens;
    rows.tokens = 0;
    for (int i = 0; i < count; ++i) {
      if (counts[i] < 0)
        refuse("tokens must not be negative, of sequence " + std::to_string(ids[i]) + " they are " +
               std::to_string(counts[i]));
      rows.tokens = checked_add(rows.tokens, counts[i], "tokens of all sequences");
      auto sequence = find(ids[i]);
      if (counts[i] == 0) continue;
      sequences.push_back(std::move(sequence));
      tokens.push_back(counts[i]);
    }
    if (rows.tokens < 1) refuse("tokens must be positive, they are 0");
    const std::vector<Sequence*> order = distinct(sequences);
    if (order.size() != sequences.size()) refuse("a sequence is listed twice in one append");
    const int64_t elements = checked_multiply(rows.tokens, plan.elements_per_token(), "tokens times row size");
    checked_multiply(elements, static_cast<int64_t>(sizeof(float)), "bytes of rows");
    for (int side = 0; side < 2; ++side) {
      rows.sides[side] = checked_rows(side == 0 ? "keys" : "values", rows.sides[side], rows.tokens,
                                      plan.attention.kv_heads, plan.attention.head_dim);
    }
    const std::unique_ptr<Appends> appends = engine().begin_appends(plan, rows, tokens);
    std::vector<std::unique_lock<FairSharedMutex>> locks;
    for (Sequence* sequence : order) locks.emplace_back(sequence->mutex);
    std::vector<SequenceLayer*> layers;
    for (size_t i = 0; i < sequences.size(); ++i) {
      layers.push_back(&sequences[i]->layers[layer]);
      if (layers.back()->guessing() && layers.back()->guesses() + tokens[i] > kMaxMaskedTokens) {
        refuse(std::to_string(tokens[i]) + " more guesses for " + std::to_string(layers.back()->guesses()) + ": " +
               std::to_string(kMaxMaskedTokens) + " are the most");
      }
      checked_add(layers.back()->length(), tokens[i], "length plus tokens");
    }
    append_batch(plan, memory_, engine(), layers, *appends);
  }

  void attend(const AttendBatch& batch) {
    const LayerPlan& plan = plan_of(batch.layer);
    if (batch.count < 1) refuse("the number of sequences must be positive, it is " + std::to_string(batch.count));
    require_pointer("sequences", batch.sequences);
    std::vector<std::shared_ptr<Sequence>> sequences;
    for (int i = 0; i < batch.count; ++i) sequences.push_back(find(batch.sequences[i]));
    QueryBatch queries(plan, batch);
    const auto locks = lock_shared(sequences);
    auto pages = memory_.read(plan.source);
    std::vector<SequenceView> views;
    for (int i = 0; i < batch.count; ++i) {
      const SequenceLayer& each = sequences[i]->layers[plan.source];
      check_visible(plan, each, batch.sequences[i], queries.runs()[i].tokens);
      views.push_back(each.view(plans_[plan.source]));
      views.back().shifts = sequences[i]->shifts.data();
      views.back().shift_count = static_cast<int>(sequences[i]->shifts.size());
      queries.place_guesses(i, views.back());
    }
    queries.take();  // not before all is checked: a count that is refused may be more than the caller has
    const AttentionRequest request = {&plan.attention,       views.data(),
                                      queries.runs().data(), batch.count,
                                      queries.queries(),     batch.on_device ? nullptr : queries.outputs(),
                                      batch.log_sums,        batch.learned_sinks};
    const Engine::Tiles tiles =
        batch.on_device ? engine().attend(plan, request, queries.device()) : engine().attend(plan, request);
    tiles_ += tiles.computed;
    fallback_tiles_ += tiles.fallback;
    if (plan.wants_queries) {
      pages = {};  // a fork holds a lock of those below while it waits for pages to shrink
      observe_attended(plan, sequences, batch.on_device, queries);
    }
    queries.deliver();
  }

  void observe(int layer, const int64_t* ids, int count, int tokens, const float* queries) {
    const LayerPlan& plan = plan_of(layer);
    if (count < 1) refuse("the number of sequences must be positive, it is " + std::to_string(count));
    if (tokens < 1) refuse("the number of query tokens must be positive, it is " + std::to_string(tokens));
    require_pointer("sequences", ids);
    require_pointer("queries", queries);
    std::vector<std::shared_ptr<Sequence>> sequences;
    for (int i = 0; i < count; ++i) sequences.push_back(find(ids[i]));
    const size_t elements = query_elements(plan, count, tokens);
    const AlignedArray<float> own = copy_of(queries, elements);
    require_finite(plan, own.get(), elements);
    if (!plan.wants_queries) return;
    const size_t size = elements / count;
    const std::vector<QueryRun> run = {{0, tokens}};  // before anything changes: it takes memory
    for (const auto& sequence : sequences) {
      std::unique_lock<FairSharedMutex> lock(sequence->mutex);
      sequence->layers[plan.source].prepare_queries(plans_[plan.source], memory_, engine());
    }
    for (int i = 0; i < count; ++i) {
      std::unique_lock<FairSharedMutex> lock(sequences[i]->mutex);
      QueryMeans& seen = sequences[i]->layers[plan.source].queries();
      uint8_t* const sums = seen.sums();
      engine().add_queries(plan, &sums, run, own.get() + i * size);
      seen.count(plan, tokens);
    }
  }

  void read(int64_t id, int layer, Side side, int64_t first, int64_t tokens, float* out) {
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
    each.read(plan, engine(), side, first, tokens, out, scratch);
    if (side == Side::kKeys && !plan.key_scaling.empty()) {
      const size_t row = plan.key_scaling.size();
      for (size_t i = 0; i < static_cast<size_t>(tokens) * row; ++i) out[i] *= plan.key_scaling[i % row];
    }
  }

  int64_t page_count(int64_t id, int layer) {
    const LayerPlan& plan = rows_plan_of(layer);
    const auto sequence = find(id);
    std::shared_lock<FairSharedMutex> lock(sequence->mutex);
    return sequence->layers[plan.index].page_count();
  }

  int64_t read_page(int64_t id, int layer, int64_t page, Side side, int kv_head, uint8_t* out, int64_t capacity) {
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

  int64_t table_size(int64_t id, int layer, Side side) {
    const LayerPlan& plan = rows_plan_of(layer);
    check_side(side);
    const auto sequence = find(id);
    std::shared_lock<FairSharedMutex> lock(sequence->mutex);
    return sequence->layers[plan.index].table(side).size();
  }

  int64_t read_table(int64_t id, int layer, Side side, int kv_head, float* out, int64_t capacity) {
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

  std::unique_ptr<CacheStats::Impl> stats() {
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

 private:
  // A layer of the length that all have.
  int even_length(int64_t id, const Sequence& sequence) const {
    const SequenceLayer& first = sequence.layers[plans_.front().source];
    for (const LayerPlan& plan : plans_) {
      const int64_t length = sequence.layers[plan.source].length();
      if (length == first.length()) continue;
      refuse("sequence " + std::to_string(id) + " holds " + std::to_string(first.length()) + " tokens in layer " +
             std::to_string(plans_.front().source) + " and " + std::to_string(length) + " in layer " +
             std::to_string(plan.source));
    }
    return plans_.front().source;
  }

  // As an append does it; where there is no memory for it, the next one will.
  void seal_what_is_due(const LayerPlan& plan, SequenceLayer& layer) {
    if (!layer.is_due(plan)) return;
    try {
      const std::unique_ptr<Appends> none = engine().begin_appends(plan, {}, {0});
      append_batch(plan, memory_, engine(), {&layer}, *none);
    } catch (const std::bad_alloc&) {
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kBudgetExceeded && error.code() != ErrorCode::kOutOfMemory) throw;
    }
  }

  // Every layer to at most `length` tokens, or nothing changes. With the sequence's lock held.
  void cut(Sequence& sequence, int64_t length) {
    float* scratch = page_scratch();
    for (const LayerPlan& plan : plans_) sequence.layers[plan.index].check_truncate(plan, length);
    std::vector<SequenceLayer::Cut> cuts;
    for (const LayerPlan& plan : plans_) {
      cuts.push_back(sequence.layers[plan.index].prepare_cut(plan, memory_, engine(), length, scratch));
    }
    for (const LayerPlan& plan : plans_) {
      sequence.layers[plan.index].truncate(plan, engine(), length, std::move(cuts[plan.index]));
    }
    for (SequenceLayer& layer : sequence.layers) {
      layer.end_promise();
      if (layer.guesses() <= 0) layer.end_guesses();
    }
    while (!sequence.shifts.empty() && sequence.shifts.back().first > length) sequence.shifts.pop_back();
  }

  static constexpr int64_t kMaxOffset = int64_t{1} << 40;
  static constexpr int64_t kMostReserved = int64_t{1} << 40;  // tokens; the bytes of more would fit no number

  [[noreturn]] static void unknown(int64_t id) {
    throw Error(ErrorCode::kUnknownSequence, "sequence " + std::to_string(id) + " was released or never existed");
  }

  static void check_side(Side side) {
    if (side != Side::kKeys && side != Side::kValues) refuse("side " + std::to_string(static_cast<int>(side)));
  }

  static void check_head(const LayerPlan& plan, int kv_head) {
    if (kv_head < 0 || kv_head >= plan.attention.kv_heads) {
      refuse("kv head " + std::to_string(kv_head) + " of " + std::to_string(plan.attention.kv_heads));
    }
  }

  // What the parts of pages are like; pages that were counted already, for another sequence, are left out.
  void count_parts(const LayerPlan& plan, const SequenceLayer& layer, std::set<const PageView*>& counted,
                   LayerStats& stats) {
    for (int64_t i = 0; i < layer.page_count(); ++i) {
      const PageView& page = layer.page(i);
      if (!counted.insert(&page).second) continue;
      for (Side side : {Side::kKeys, Side::kValues}) {
        const int index = static_cast<int>(side);
        stats.parts[index] += plan.attention.kv_heads;
        const Codec& codec = *plan.codecs[index];
        for (int head = 0; head < plan.attention.kv_heads; ++head) {
          stats.part_bytes[index] += static_cast<int64_t>(page.part_bytes(side, head));
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

  static std::vector<int64_t> layer_budgets(const CacheConfig::Impl& config) {
    std::vector<int64_t> budgets;
    for (const LayerConfig& layer : config.layers) budgets.push_back(layer.budget);
    return budgets;
  }

  // Elements of `tokens` queries of each of `count` sequences.
  static size_t query_elements(const LayerPlan& plan, int count, int tokens) {
    const int64_t row = int64_t{plan.attention.query_heads} * plan.attention.head_dim;
    const int64_t elements = checked_multiply(int64_t{count} * tokens, row, "query tokens times query size");
    checked_multiply(elements, static_cast<int64_t>(sizeof(float)), "bytes of queries");
    return static_cast<size_t>(elements);
  }

  // Queries are read once: after that the caller, or the outputs where they overlap, may write to them.
  static AlignedArray<float> copy_of(const float* queries, size_t elements) {
    AlignedArray<float> copy = make_aligned<float>(elements);
    std::memcpy(copy.get(), queries, elements * sizeof(float));
    return copy;
  }

  static void require_finite(const LayerPlan& plan, const float* queries, size_t elements) {
    const auto finite = [](float value) { return (float_bits(value) & 0x7F800000u) != 0x7F800000u; };
    // By bits and without a way out: compilers vectorise this, and not comparisons of floats.
    bool good = true;
    for (size_t i = 0; i < elements; ++i) good &= finite(queries[i]);
    if (good) return;
    const size_t index = std::find_if_not(queries, queries + elements, finite) - queries;
    throw not_finite("queries", plan.index, plan.attention.query_heads, plan.attention.head_dim,
                     static_cast<int64_t>(index), queries[index]);
  }

  // Room for one side of one decoded page of any layer, and for one of its heads.
  float* page_scratch() const {
    size_t floats = 0;
    for (const LayerPlan& plan : plans_) {
      const size_t row = static_cast<size_t>(plan.attention.kv_heads + 1) * plan.attention.head_dim;
      floats = std::max(floats, kPageTokens * row);
    }
    struct DecodedPage;
    return thread_scratch<DecodedPage, float>(floats);
  }

  const LayerPlan& plan_of(int layer) const {
    if (layer < 0 || layer >= static_cast<int>(plans_.size())) {
      refuse("layer " + std::to_string(layer) + " of " + std::to_string(plans_.size()));
    }
    return plans_[layer];
  }

  // Of the layer whose rows it attends to.
  const LayerPlan& rows_plan_of(int layer) const { return plans_[plan_of(layer).source]; }

  // Queries that were attended with go to the sums of what they looked at.
  void observe_attended(const LayerPlan& plan, const std::vector<std::shared_ptr<Sequence>>& sequences, bool on_device,
                        const QueryBatch& queries) {
    std::vector<std::unique_lock<std::mutex>> observing;
    for (Sequence* sequence : distinct(sequences)) observing.emplace_back(sequence->queries);
    std::vector<uint8_t*> sums;
    for (const auto& sequence : sequences) sums.push_back(sequence->layers[plan.source].queries().sums());
    if (on_device) {
      engine().add_queries(plan, sums.data(), queries.runs(), queries.device());
    } else {
      engine().add_queries(plan, sums.data(), queries.runs(), queries.queries());
    }
    for (size_t i = 0; i < sequences.size(); ++i) {
      sequences[i]->layers[plan.source].queries().count(plan, queries.runs()[i].tokens);
    }
  }

  int64_t add(std::shared_ptr<Sequence> sequence) {
    std::lock_guard<std::mutex> lock(mutex_);
    const int64_t id = next_id_;
    sequences_.emplace(id, std::move(sequence));
    ++next_id_;
    return id;
  }

  std::shared_ptr<Sequence> find(int64_t id) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) unknown(id);
    return found->second;
  }

  // Locks each sequence once, in one global order: waiting writers then cannot tie readers into a knot.
  static std::vector<std::shared_lock<FairSharedMutex>> lock_shared(
      const std::vector<std::shared_ptr<Sequence>>& sequences) {
    std::vector<std::shared_lock<FairSharedMutex>> locks;
    for (Sequence* sequence : distinct(sequences)) locks.emplace_back(sequence->mutex);
    return locks;
  }

  static std::vector<Sequence*> distinct(const std::vector<std::shared_ptr<Sequence>>& sequences) {
    std::vector<Sequence*> order;
    for (const auto& sequence : sequences) order.push_back(sequence.get());
    std::sort(order.begin(), order.end());
    order.erase(std::unique(order.begin(), order.end()), order.end());
    return order;
  }

  void check_visible(const LayerPlan& plan, const SequenceLayer& layer, int64_t id, int tokens) const {
    if (layer.length() < tokens) {
      refuse("sequence " + std::to_string(id) + " holds " + std::to_string(layer.length()) + " tokens in layer " +
             std::to_string(plan.index) + ", fewer than the " + std::to_string(tokens) + " that attend");
    }
    const int64_t oldest = layer.length() - tokens - plan.attention.sliding_window + 1;
    if (plan.attention.sliding_window != 0 &&
        std::max<int64_t>(oldest, plan.sinks) < layer.first_held(plans_[plan.source])) {
      refuse("sequence " + std::to_string(id) + ": the sliding window of layer " + std::to_string(plan.index) +
             " left tokens behind that the oldest of " + std::to_string(tokens) + " queries would see");
    }
  }

  Engine& engine() { return *engine_.engine; }

  const ChosenEngine engine_;
  const std::vector<LayerPlan> plans_;
  Memory memory_;
  std::mutex mutex_;  // guards the map, not the sequences
  std::map<int64_t, std::shared_ptr<Sequence>> sequences_;
  int64_t next_id_ = 1;
  std::atomic<int64_t> tiles_{0};
  std::atomic<int64_t> fallback_tiles_{0};
};

Cache* Cache::create(const CacheConfig& config) { return new Cache(config); }
void Cache::destroy(Cache* cache) { delete cache; }
Cache::Cache(const CacheConfig& config) : impl_(new Impl(config.impl())) {}
Cache::~Cache() = default;

int64_t Cache::new_sequence() { return impl_->new_sequence(); }
int64_t Cache::fork(int64_t sequence) { return impl_->fork(sequence); }
void Cache::truncate(int64_t sequence, int64_t length) { impl_->truncate(sequence, length); }
void Cache::reserve(int64_t sequence, int64_t tokens) { impl_->reserve(sequence, tokens); }
void Cache::guess(int64_t sequence) { impl_->guess(sequence); }
void Cache::keep(int64_t sequence, const int* kept, int count) { impl_->keep(sequence, kept, count); }
int64_t Cache::rollback(int64_t sequence) { return impl_->rollback(sequence); }
void Cache::release(int64_t sequence) { impl_->release(sequence); }
void Cache::shift(int64_t sequence, int64_t first, int64_t offset) { impl_->shift(sequence, first, offset); }
int64_t Cache::length(int64_t sequence, int layer) { return impl_->length(sequence, layer); }

void Cache::append(int64_t sequence, int layer, const float* keys, const float* values, int64_t tokens) {
  impl_->append(sequence, layer, tokens, {{{keys}, {values}}});
}

void Cache::append_f16(int64_t sequence, int layer, const uint16_t* keys, const uint16_t* values, int64_t tokens) {
  impl_->append(sequence, layer, tokens, {{{keys, ElementType::kFloat16}, {values, ElementType::kFloat16}}});
}

void Cache::append_bf16(int64_t sequence, int layer, const uint16_t* keys, const uint16_t* values, int64_t tokens) {
  impl_->append(sequence, layer, tokens, {{{keys, ElementType::kBFloat16}, {values, ElementType::kBFloat16}}});
}

void Cache::append_rows(int layer, const int64_t* sequences, const int64_t* counts, int count, const RowsView& keys,
                        const RowsView& values) {
  impl_->append(layer, sequences, counts, count, {{keys, values}});
}

void Cache::append_rows_device(int layer, const int64_t* sequences, const int64_t* counts, int count,
                               const RowsView& keys, const RowsView& values, void* stream) {
  impl_->append(layer, sequences, counts, count, {{keys, values}, 0, true, stream});
}

void Cache::attend(const AttendBatch& batch) { impl_->attend(batch); }

void Cache::attend(int layer, const int64_t* sequences, int count, int tokens, const float* queries, float* outputs) {
  AttendBatch batch;
  batch.layer = layer;
  batch.sequences = sequences;
  batch.count = count;
  batch.tokens_each = tokens;
  batch.queries.data = queries;
  batch.outputs.data = outputs;
  impl_->attend(batch);
}

void Cache::append_device(int64_t sequence, int layer, const void* keys, const void* values, ElementType type,
                          int64_t tokens, void* stream) {
  impl_->append(sequence, layer, tokens, {{{keys, type}, {values, type}}, 0, true, stream});
}

void Cache::attend_device(int layer, const int64_t* sequences, int count, int tokens, const void* queries,
                          void* outputs, ElementType type, void* stream) {
  AttendBatch batch;
  batch.layer = layer;
  batch.sequences = sequences;
  batch.count = count;
  batch.tokens_each = tokens;
  batch.queries = {queries, type};
  batch.outputs = {outputs, type};
  batch.on_device = true;
  batch.stream = stream;
  impl_->attend(batch);
}

void Cache::observe(int layer, const int64_t* sequences, int count, int tokens, const float* queries) {
  impl_->observe(layer, sequences, count, tokens, queries);
}

void Cache::read(int64_t sequence, int layer, Side side, int64_t first, int64_t tokens, float* out) {
  impl_->read(sequence, layer, side, first, tokens, out);
}

int64_t Cache::page_count(int64_t sequence, int layer) { return impl_->page_count(sequence, layer); }

int64_t Cache::read_page(int64_t sequence, int layer, int64_t page, Side side, int kv_head, uint8_t* out,
                         int64_t capacity) {
  return impl_->read_page(sequence, layer, page, side, kv_head, out, capacity);
}

int64_t Cache::table_size(int64_t sequence, int layer, Side side) { return impl_->table_size(sequence, layer, side); }

int64_t Cache::read_table(int64_t sequence, int layer, Side side, int kv_head, float* out, int64_t capacity) {
  return impl_->read_table(sequence, layer, side, kv_head, out, capacity);
}

CacheStats* Cache::stats() { return new CacheStats(impl_->stats()); }

}  // namespace kvasir
