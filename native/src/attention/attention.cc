#include "attention/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "attention/shared_rows.h"
#include "attention/softmax_state.h"
#include "base/rope.h"

namespace kvasir {
namespace {

// Fewer tiles than this are not worth another thread: waking one costs about as much as computing them.
constexpr int64_t kMinTilesPerTask = 8;
// Tasks that a sequence is cut into where it is long enough: some for each thread of a large machine, so that a slow
// core does not keep the others waiting.
constexpr int64_t kTasks = 128;
// Up to kPageTokens consecutive tokens that are stored alike.
struct Tile {
  const PageView* page;          // null: float16 rows
  const uint8_t* const* blocks;  // of those rows, which begin with a block
  int tokens;
  int64_t position;
  int64_t page_number = 0;
};

int64_t tiles_of_rows(int rows) { return (rows + kPageTokens - 1) / kPageTokens; }

int64_t tile_count(const SequenceView& sequence) {
  return tiles_of_rows(sequence.sinks) + sequence.page_count + tiles_of_rows(sequence.window);
}

Tile tile_at(const SequenceView& sequence, int64_t index) {
  if (index < tiles_of_rows(sequence.sinks)) {
    const int row = static_cast<int>(index) * kPageTokens;
    return {nullptr, sequence.sink_blocks + row / kRowBlockTokens, std::min(sequence.sinks - row, kPageTokens), row};
  }
  index -= tiles_of_rows(sequence.sinks);
  const int64_t window_position = sequence.length - sequence.window;
  if (index < sequence.page_count) {
    return {sequence.pages[index], nullptr, kPageTokens, window_position - (sequence.page_count - index) * kPageTokens,
            sequence.first_page + index};
  }
  const int row = static_cast<int>(index - sequence.page_count) * kPageTokens;
  return {nullptr, sequence.window_blocks + row / kRowBlockTokens, std::min(sequence.window - row, kPageTokens),
          window_position + row};
}

// One unit of work: some tiles of one kv head of one sequence, for up to kMaxTileRows of its queries.
struct Task {
  int sequence;
  int kv_head;
  int first_row;  // rows are query tokens times query heads of the kv head, tokens first
  int rows;
  int64_t first_tile;
  int64_t end_tile;
  int merge;  // tasks that are parts of one result share this number
  int state;  // where what it saw waits for the other parts; -1: there are none
};

// Which tokens of a tile a query sees: begin .. end - 1, but from `newest` on only those whose bits are set.
struct Sight {
  int begin, end;
  int newest = kPageTokens;
  uint64_t bits = 0;

  bool any() const { return begin < end; }
  void hide(float* scores) const {
    for (int t = newest; t < end; ++t) {
      if ((bits >> (t - newest) & 1) == 0) scores[t] = -std::numeric_limits<float>::infinity();
    }
  }
};

Sight sight_of(const AttentionLayer& layer, const SequenceView& sequence, const QueryRun& run, int query,
               const Tile& tile) {
  const auto in_tile = [&](int64_t position) {
    return static_cast<int>(std::clamp<int64_t>(position - tile.position, 0, tile.tokens));
  };
  const int64_t position = run.position(sequence.length, query);
  const int begin = in_tile(layer.sliding_window ? position - layer.sliding_window + 1 : 0);
  if (!run.masks) return {begin, in_tile(position + 1)};
  const int64_t first = sequence.length - run.tokens;
  const int newest = in_tile(first);
  if (newest == tile.tokens) return {begin, newest};
  uint64_t bits = run.masks[query] >> (tile.position + newest - first);
  const int count = tile.tokens - newest;
  if (count < 64) bits &= (uint64_t{1} << count) - 1;
  if (bits == 0) return {begin, newest};
  const int lowest = newest + __builtin_ctzll(bits), end = newest + 64 - __builtin_clzll(bits);
  return {begin < newest ? begin : lowest, end, newest, bits};
}

// A sequence's side tables as one task sees them: the vectors of one kv head, and the products of its queries with
// them.
struct TaskSides {
  std::vector<const uint16_t*> vectors[2];
  const float* key_terms = nullptr;

  int entries(Side side) const { return static_cast<int>(vectors[static_cast<int>(side)].size()) + 1; }
  // What no page limits.
  SideView all(Side side) const {
    SideView view;
    view.vectors = vectors[static_cast<int>(side)].data();
    view.count = entries(side) - 1;
    return view;
  }
};

class Attention {
 public:
  explicit Attention(const AttentionRequest& request) : request_(request), layer_(*request.layer) {
    struct Parts;
    const int states = plan();
    resize<Parts>(states_, states, std::min(most_rows(), kMaxTileRows), most_entries());
  }

  int64_t run(ThreadPool& pool) {
    pool.run(static_cast<int>(tasks_.size()), [this](int task) { run_task(task); });
    int64_t page_tiles = 0;
    for (int s = 0; s < request_.count; ++s) page_tiles += request_.sequences[s].page_count;
    return page_tiles * layer_.attended_heads();
  }

 private:
  // Cuts a sequence by its own length and its queries alone: results are the same to the bit, whoever is beside it in
  // the call and however many threads there are. Returns how many states wait for others: some for each of kTasks at
  // most, so that chunks of many queries need no more memory than their outputs.
  int plan() {
    int states = 0;
    for (int s = 0; s < request_.count; ++s) {
      const int64_t tiles = tile_count(request_.sequences[s]);
      const int row_blocks = (rows(s) + kMaxTileRows - 1) / kMaxTileRows;
      const int64_t share = tiles * layer_.attended_heads() * row_blocks / kTasks + 1;
      const int64_t per_task = std::max(kMinTilesPerTask, share);
      const int64_t splits = std::max<int64_t>(1, (tiles + per_task - 1) / per_task);
      for (int head = 0; head < layer_.attended_heads(); ++head) {
        for (int row = 0; row < rows(s); row += kMaxTileRows) {
          const int merge = static_cast<int>(merge_first_.size());
          merge_first_.push_back(static_cast<int>(tasks_.size()));
          for (int64_t i = 0; i < splits; ++i) {
            tasks_.push_back({s, head, row, std::min(kMaxTileRows, rows(s) - row), tiles * i / splits,
                              tiles * (i + 1) / splits, merge, splits > 1 ? states++ : -1});
          }
        }
      }
    }
    merge_first_.push_back(static_cast<int>(tasks_.size()));
    missing_ = std::make_unique<std::atomic<int>[]>(merge_first_.size() - 1);
    for (size_t m = 0; m + 1 < merge_first_.size(); ++m) missing_[m] = merge_first_[m + 1] - merge_first_[m];
    return states;
  }

  template <class Purpose>
  void resize(SoftmaxStates& states, int count, int rows, int entries) const {
    states.resize<Purpose>(static_cast<size_t>(count), rows, layer_.output_dim(), entries,
                           layer_.formats[1].sums > 0 ? 1 : kEntryRows);
  }

  // Extra sums that a state needs for the values: the format's own, or as many as the side table has.
  int entries(int sequence) const {
    if (layer_.latent() || !layer_.codecs[1].end_values) return 0;
    return layer_.formats[1].sums > 0 ? layer_.formats[1].sums : request_.sequences[sequence].tables[1]->size() + 1;
  }
  int most_entries() const {
    int most = 0;
    for (int s = 0; s < request_.count; ++s) most = std::max(most, entries(s));
    return most;
  }

  // Of one kv head of a sequence.
  int rows(int sequence) const { return request_.runs[sequence].tokens * layer_.group(); }
  int most_rows() const {
    int most = 0;
    for (int s = 0; s < request_.count; ++s) most = std::max(most, rows(s));
    return most;
  }

  int head_of(const Task& task, int row) const { return task.kv_head * layer_.group() + row % layer_.group(); }
  // Of [rows][query_heads].
  size_t place_of(const Task& task, int row) const {
    const auto token = static_cast<size_t>(request_.runs[task.sequence].first + row / layer_.group());
    return token * layer_.query_heads + head_of(task, row);
  }

  void run_task(int index) {
    const Task& task = tasks_[index];
    alignas(64) float queries[kMaxTileRows * kMaxRowDim];
    const int d = layer_.query_dim();
    for (int r = 0; r < task.rows; ++r) {
      const float* query = request_.queries + place_of(task, task.first_row + r) * d;
      for (int c = 0; c < d; ++c) queries[r * d + c] = query[c] * layer_.softmax_scale;
      if (!layer_.key_scaling) continue;
      const float* scaling = layer_.key_scaling + static_cast<size_t>(task.kv_head) * d;
      for (int c = 0; c < d; ++c) queries[r * d + c] *= scaling[c];
    }
    if (layer_.turns) {
      alignas(64) float planar[kMaxHeadDim];
      for (int r = 0; r < task.rows; ++r) {
        to_planar(layer_.pairs, d, queries + r * d, planar);
        std::memcpy(queries + r * d, planar, sizeof(float) * d);
      }
    }
    TaskSides sides;
    begin_sides(task, queries, sides);
    struct Whole;
    SoftmaxStates own;
    if (task.state < 0) resize<Whole>(own, 1, task.rows, entries(task.sequence));
    SoftmaxState state = task.state < 0 ? own.at(0) : states_.at(static_cast<size_t>(task.state));
    state.clear(task.rows);
    for (int64_t t = task.first_tile; t < task.end_tile; ++t) run_tile(task, t, queries, sides, state);

    // Whoever finishes last merges; the order of merging is that of the tiles, whoever it is.
    if (missing_[task.merge].fetch_sub(1) > 1) return;
    const int parts = merge_first_[task.merge + 1] - merge_first_[task.merge];
    const int first = tasks_[merge_first_[task.merge]].state;
    if (parts > 1) state = states_.at(static_cast<size_t>(first));
    for (int i = 1; i < parts; ++i) state.merge(states_.at(static_cast<size_t>(first + i)), task.rows);
    finish(task, sides, state);
  }

  void finish(const Task& task, const TaskSides& sides, SoftmaxState& result) const {
    if (result.entries > 0) {
      TileInput sums = {nullptr, task.rows, 0, layer_.fast};
      sums.head = task.kv_head % layer_.formats[1].heads;
      sums.sums = result.extra;
      sums.entries = result.entries;
      layer_.codecs[1].end_values(layer_.formats[1], sides.all(Side::kValues), sums, result.output);
    }
    for (int r = 0; r < task.rows; ++r) {
      const int row = task.first_row + r;
      const size_t place = place_of(task, row);
      if (request_.sink_logits && layer_.sink_logits) result.add_score(r, layer_.sink_logits[head_of(task, row)]);
      if (request_.log_sums) request_.log_sums[place] = result.log_sum(r);
      result.write(r, request_.outputs + place * layer_.output_dim());
    }
  }

  void begin_sides(const Task& task, const float* queries, TaskSides& sides) const {
    const SequenceView& sequence = request_.sequences[task.sequence];
    if (layer_.latent()) return;
    if (layer_.codecs[1].end_values) {
      sides.vectors[1] = side_vectors(*sequence.tables[1], task.kv_head, layer_.head_dim);
    }
    if (!layer_.codecs[0].begin_keys) return;
    sides.vectors[0] = side_vectors(*sequence.tables[0], task.kv_head, layer_.head_dim);
    struct KeyTerms;
    const int own = layer_.formats[0].terms;
    float* terms = thread_scratch<KeyTerms, float>(own > 0 ? static_cast<size_t>(own) * task.rows
                                                           : entry_floats(task.rows, sides.entries(Side::kKeys)));
    TileInput input = {queries, task.rows, layer_.head_dim, layer_.fast};
    input.head = task.kv_head % layer_.formats[0].heads;
    layer_.codecs[0].begin_keys(layer_.formats[0], sides.all(Side::kKeys), input, terms);
    sides.key_terms = terms;
  }

  void run_tile(const Task& task, int64_t index, const float* queries, const TaskSides& sides,
                SoftmaxState& state) const {
    const SequenceView& sequence = request_.sequences[task.sequence];
    const Tile tile = tile_at(sequence, index);
    Sight sights[kMaxTileRows];
    bool visible = false;
    for (int r = 0; r < task.rows; ++r) {
      const int query = (task.first_row + r) / layer_.group();
      sights[r] = sight_of(layer_, sequence, request_.runs[task.sequence], query, tile);
      visible |= sights[r].any();
    }
    if (!visible) return;

    const int d = layer_.query_dim();
    alignas(64) float scores[kMaxTileRows * kPageTokens];
    TileInput input = {queries, task.rows, d, layer_.fast};
    TileInput weights = {scores, task.rows, kPageTokens, layer_.fast};
    if (layer_.latent()) {
      const float* rows = shared_rows(layer_, tile.page, tile.blocks, tile.tokens);
      layer_.rows->float_scores(rows, tile.tokens, d, d, input, scores);
      softmax_step(sights, scores, state, task.rows);
      layer_.rows->float_sum(rows, tile.tokens, d, layer_.value_dim, weights, state.output);
      return;
    }
    SideView views[2];
    if (tile.page) {
      views[0] = side_view(*sequence.tables[0], sides.vectors[0], tile.page_number);
      views[1] = side_view(*sequence.tables[1], sides.vectors[1], tile.page_number);
      input.side = &views[0];
      input.terms = sides.key_terms;
      input.entries = sides.entries(Side::kKeys);
      weights.side = &views[1];
      weights.sums = state.extra;
      weights.entries = state.entries;
    }

    input.head = task.kv_head % layer_.formats[0].heads;
    weights.head = task.kv_head % layer_.formats[1].heads;
    if (layer_.turns) {
      turned_scores(sequence, task, tile, input, scores);
    } else {
      tile_scores(task, tile, input, scores);
    }

    softmax_step(sights, scores, state, task.rows);
    if (tile.page) {
      layer_.codecs[1].value_sum(tile.page->format(Side::kValues), tile.page->part(Side::kValues, task.kv_head),
                                 weights, state.output);
    } else {
      for_blocks(task, tile, Side::kValues, [&](const uint16_t* rows, int first, int count) {
        TileInput of_block = weights;
        of_block.rows += first;
        layer_.rows->value_sum(rows, count, d, of_block, state.output);
      });
    }
  }

  // Scores become weights.
  void softmax_step(const Sight* sights, float* scores, SoftmaxState& state, int rows) const {
    const int d = state.head_dim;
    for (int r = 0; r < rows; ++r) {
      float* row = scores + r * kPageTokens;
      if (!sights[r].any()) {
        std::memset(row, 0, kPageTokens * sizeof *row);
        continue;
      }
      const int begin = sights[r].begin, end = sights[r].end;
      if (layer_.soft_cap > 0.0f) layer_.rows->soft_cap(row, begin, end, layer_.soft_cap);
      sights[r].hide(row);
      const float old_max = state.max[r];
      layer_.rows->softmax(row, begin, end, &state.max[r], &state.sum[r], state.output + r * d, d);
      state.rescale_extra(r, old_max);
    }
  }

  // verb(rows, first, count): the blocks of a tile that is no page, with the tile's tokens that each of them holds.
  template <class Verb>
  void for_blocks(const Task& task, const Tile& tile, Side side, const Verb& verb) const {
    for (int first = 0; first < tile.tokens; first += kRowBlockTokens) {
      verb(half_row(layer_, tile.blocks, side, task.kv_head, first), first,
           std::min(kRowBlockTokens, tile.tokens - first));
    }
  }

  void tile_scores(const Task& task, const Tile& tile, const TileInput& input, float* scores) const {
    if (tile.page) {
      layer_.codecs[0].key_scores(tile.page->format(Side::kKeys), tile.page->part(Side::kKeys, task.kv_head), input,
                                  scores);
      return;
    }
    for_blocks(task, tile, Side::kKeys, [&](const uint16_t* rows, int first, int count) {
      TileInput of_block = input;
      if (input.turns) of_block.turns += static_cast<size_t>(first) * layer_.head_dim;
      const auto verb = input.turns ? layer_.rows->turned_scores : layer_.rows->key_scores;
      verb(rows, count, layer_.head_dim, of_block, scores + first);
    });
  }

  // The same for keys that are stored before RoPE. Tokens of one tile may have been shifted by different offsets: it is
  // then computed for each, and the tokens that have it keep the result.
  void turned_scores(const SequenceView& sequence, const Task& task, const Tile& tile, const TileInput& planar,
                     float* scores) const {
    alignas(64) float turned[kMaxTileRows * kMaxHeadDim];
    TileInput input = planar;
    input.rows = turned;
    input.turns = layer_.turns->offsets();
    input.neighbours = layer_.pairs == RopePairs::kNeighbours;
    int shift = 0;  // those up to the tile's first token
    while (shift < sequence.shift_count && sequence.shifts[shift].first <= tile.position) ++shift;
    const auto offset_of = [&](int index) { return index == 0 ? 0 : sequence.shifts[index - 1].offset; };
    layer_.turns->turn_back(tile.position + offset_of(shift), planar.rows, planar.count, turned);
    tile_scores(task, tile, input, scores);
    for (; shift < sequence.shift_count && sequence.shifts[shift].first < tile.position + tile.tokens; ++shift) {
      alignas(64) float others[kMaxTileRows * kPageTokens];
      layer_.turns->turn_back(tile.position + offset_of(shift + 1), planar.rows, planar.count, turned);
      tile_scores(task, tile, input, others);
      const int first = static_cast<int>(sequence.shifts[shift].first - tile.position);
      for (int r = 0; r < planar.count; ++r) {
        std::copy(others + r * kPageTokens + first, others + r * kPageTokens + tile.tokens,
                  scores + r * kPageTokens + first);
      }
    }
  }

  const AttentionRequest& request_;
  const AttentionLayer& layer_;
  std::vector<Task> tasks_;
  std::vector<int> merge_first_;                 // first task of each result, and the end
  std::unique_ptr<std::atomic<int>[]> missing_;  // unfinished tasks of each result
  SoftmaxStates states_;
};

}  // namespace

int64_t attend(const AttentionRequest& request, ThreadPool& pool) { return Attention(request).run(pool); }

}  // namespace kvasir
