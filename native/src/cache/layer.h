// One layer of one sequence: where its tokens are, and how they move from the window into pages.
//
// Positions 0 .. sinks-1 are sink rows, then come pages of kPageTokens, then the window. "Body" means the tokens after
// the sinks; page i holds body tokens i * kPageTokens and up, always, so pages never need more than a count to be
// found.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/halves.h"
#include "cache/memory.h"
#include "cache/query_means.h"
#include "cache/row_blocks.h"
#include "engine/engine.h"

namespace kvasir {

// A layer of a sequence as it is saved: pages by reference, all else by value.
struct LayerImage {
  int64_t length = 0;
  int64_t dropped_pages = 0;
  int64_t guesses_from = -1;
  std::vector<std::shared_ptr<Page>> pages;
  SideTable tables[2];
  Halves sinks, window;          // [side][kv_heads][rows][head_dim]
  std::vector<uint8_t> queries;  // as query_sums.h has them, but for the count; empty where there are none
  int64_t query_count = 0;

  int64_t sealed_pages() const { return dropped_pages + static_cast<int64_t>(pages.size()); }
  // Rows that belong to it.
  int64_t sink_rows(const LayerPlan& plan) const { return std::min<int64_t>(length, plan.sinks); }
  int64_t window_rows(const LayerPlan& plan) const {
    return std::max<int64_t>(0, length - plan.sinks) - sealed_pages() * kPageTokens;
  }
};

class SequenceLayer {
 public:
  int64_t length() const { return length_; }
  // First token that is still held; sinks aside, a sliding window leaves older ones behind.
  int64_t first_held(const LayerPlan& plan) const {
    return dropped_pages_ == 0 ? 0 : plan.sinks + dropped_pages_ * kPageTokens;
  }
  int64_t page_count() const { return static_cast<int64_t>(pages_.size()); }
  const PageView& page(int64_t index) const { return *page_views_[index]; }
  const SideTable& table(Side side) const { return tables_[static_cast<int>(side)]; }

  // Of what was reserved.
  struct Promise {
    int64_t left = 0, lent = 0;  // bytes
  };

  // Appending, in steps (cache/append_batch.h). All but the last may throw, and change nothing that anybody sees.
  struct Growth {
    Append* append = nullptr;
    int64_t length = 0;  // after it
    Memory::Needs needs;
    RowBlocks::Change changes[2] = {};  // of sinks and window
    bool other_blocks = false;          // whether the changes need any
    bool takes = false;                 // whether it needs memory at all
    PartHeads heads;
    Promise promise;
    int64_t loan = 0;                    // of the promise, in pages that are wide
    int64_t paid = 0;                    // blocks left behind that pay for pages, beside the promise
    Pool::Reservation* bytes = nullptr;  // what it takes from; side tables do so as pages are sealed
    // What it has taken:
    RowBlocks sinks, window;
    std::unique_ptr<LayerState> state;
    std::vector<std::shared_ptr<Page>> pages;
    SideTable tables[2];
  };
  // Opens the append and says what it needs.
  Growth open(const LayerPlan& plan, Engine& engine, Append& append) const;
  // Of what was reserved for it, and pages of these shapes.
  void take(const LayerPlan& plan, Memory& memory, Engine& engine, Pool::Reservation& bytes,
            const PageShape* const* shapes, Growth& growth);
  void seal(const LayerPlan& plan, Engine& engine, Growth& growth);
  // Where the rows that are in no page are to be written. Nobody looks there yet, but where blocks of a page to be
  // sealed take rows again: so this comes last.
  Appends::Target target(const Growth& growth) const;
  // Cannot fail.
  void commit(const LayerPlan& plan, Memory& memory, Engine& engine, Growth& growth);
  // In place of commit, before the growth ends: what it drew from a promise stands again.
  void abandon(const Growth& growth);

  // Whether a token that comes later (Extension) goes where there is room already; then it does, and nothing can fail.
  bool has_room(const LayerPlan& plan) const;
  void extend(const LayerPlan& plan);

  // What appends of `tokens` tokens in all need at most, however they are cut into calls.
  Memory::Needs most_needs(const LayerPlan& plan, int64_t tokens) const;
  // Room for them, which appends draw from. It ends with the last of those tokens, and before that by end_promise.
  void promise(std::unique_ptr<Pool::Reservation> room, int64_t tokens);
  void end_promise();
  Promise promised() const { return promised_ ? Promise{promised_->left(), promised_->lent()} : Promise(); }
  // What was drawn since then stands again; before it goes back.
  void restore_promise(const Promise& before);

  // Whether truncate(length) is possible; throws where it is not.
  void check_truncate(const LayerPlan& plan, int64_t length) const;
  // What it needs: what remains of the page that the cut goes through, where it goes through one, and the blocks of the
  // window after it.
  struct Cut {
    std::unique_ptr<ReturningRows> rows;
    RowBlocks window;
  };
  // Throws kOutOfMemory; budgets are overdrawn. `scratch`: kPageTokens * (kv_heads + 1) * head_dim floats.
  Cut prepare_cut(const LayerPlan& plan, Memory& memory, Engine& engine, int64_t length, float* scratch) const;
  // Cannot fail once prepared.
  void truncate(const LayerPlan& plan, Memory& memory, Engine& engine, int64_t length, Cut cut);

  // Guesses: what is appended from now on may be cut down to some of it, and is not sealed before that.
  void guess() { guesses_from_ = length_; }
  bool guessing() const { return guesses_from_ >= 0; }
  // Negative where the layer is shorter than before them.
  int64_t guesses() const { return guessing() ? length_ - guesses_from_ : 0; }
  void end_guesses() { guesses_from_ = -1; }
  // What keeping `count` of them needs: blocks whose rows are this sequence's own. Throws kOutOfMemory; budgets are
  // overdrawn.
  struct Kept {
    int64_t length;
    RowBlocks sinks, window;
    std::vector<RowCopy> copies;
  };
  Kept prepare_keep(const LayerPlan& plan, Memory& memory, Engine& engine, const int* kept, int count) const;
  // Cannot fail once prepared. Pages that are due after it are sealed by the next append, of no token, too.
  void keep(const LayerPlan& plan, Memory& memory, Engine& engine, Kept kept);
  bool is_due(const LayerPlan& plan) const { return pages_to_seal(plan, length_) > 0; }

  // A copy that shares the pages, and the 16-bit rows until either of the two writes to their block.
  SequenceLayer fork(const LayerPlan& plan, Memory& memory, Engine& engine) const;
  Memory::Needs needs_to_fork() const { return {queries_.bytes(), 0, 0, promised_.get()}; }

  // Saving, and the way back (saving/layer_image.cc). The image's pages are those of this cache, and it has been
  // checked. 16-bit rows are then still to be read, and to be written, as image_rows says.
  LayerImage image(const LayerPlan& plan, Engine& engine) const;
  static int64_t bytes_to_restore(const LayerPlan& plan, const LayerImage& image);
  // Of what was reserved for it; all but the rows and pages of the image is used up. Pages may not shrink yet: enlist
  // comes when nothing can fail any more.
  SequenceLayer(const LayerPlan& plan, Engine& engine, Pool::Reservation& bytes, LayerImage& image);
  // Rows of the image, which has memory for all of them.
  void image_rows(const LayerPlan& plan, LayerImage& image, std::vector<ImageRows>& out) const;
  SequenceLayer() = default;
  void enlist(Memory& memory) { memory.enlist(pages_); }

  // For layers whose codec goes by queries; without memory before the first of them.
  QueryMeans& queries() { return queries_; }

  SequenceView view(const LayerPlan& plan) const;

  // Decoded rows of one side. `scratch` as above.
  void read(const LayerPlan& plan, Engine& engine, Side side, int64_t first, int64_t tokens, float* out,
            float* scratch) const;

 private:
  int64_t body(const LayerPlan& plan) const { return body_at(plan, length_); }
  // Pages to seal where the layer grows to that length; and of them those whose tokens are there already, or come now.
  int64_t pages_to_seal(const LayerPlan& plan, int64_t new_length) const;
  int64_t pages_to_seal(const LayerPlan& plan, int64_t new_length, int64_t present) const {
    const int64_t whole = body_at(plan, length_ + present) / kPageTokens - sealed_pages();
    return std::min(pages_to_seal(plan, new_length), whole);
  }
  int64_t sealed_pages() const { return dropped_pages_ + page_count(); }

  // What side tables take where so many pages are sealed by one call, and `later` ones after it.
  int64_t tables_growth(const LayerPlan& plan, int64_t at_once, int64_t later) const;
  // most_needs in bytes, pages included, where pages are paid with the blocks that they leave behind; INT64_MAX where
  // that cannot be relied on.
  int64_t bytes_in_turn(const LayerPlan& plan, int64_t tokens, int64_t pages) const;

  // What becomes of the blocks of 16-bit rows where tokens are appended, and the length cut.
  RowBlocks::Change sinks_change(const LayerPlan& plan, int64_t new_length) const;
  RowBlocks::Change window_change(const LayerPlan& plan, int64_t new_length, int64_t to_seal) const;
  RowBlocks::Change window_cut(const LayerPlan& plan, int64_t length) const;
  static RowBlocks restored(const LayerPlan& plan, Engine& engine, Pool::Reservation& bytes, int64_t rows);
  static RowBlocks changed(const LayerPlan& plan, Engine& engine, Pool::Reservation& bytes, const RowBlocks& rows,
                           const RowBlocks::Change& change);

  class Seal;
  // How the parts of pages to seal are laid out, where the codec says that for each.
  PartHeads lay_out_parts(const LayerPlan& plan, Engine& engine, Append& append, int64_t pages) const;
  // The engine learns what the layer is now.
  void tell(const LayerPlan& plan, Memory& memory, Engine& engine) const;
  // A side of a sealed page, counted from the sinks on: rows[kPageTokens][kv_heads][head_dim], with room behind them.
  void decode_page(const LayerPlan& plan, Engine& engine, int64_t page, Side side, float* rows) const;
  // 16-bit rows: out[count][kv_heads][head_dim].
  static void read_halves(const LayerPlan& plan, Engine& engine, const RowBlocks& rows, Side side, int64_t first,
                          int64_t count, float* out);
  // Body tokens and pages that are left at a length.
  int64_t body_at(const LayerPlan& plan, int64_t length) const { return length > plan.sinks ? length - plan.sinks : 0; }
  int64_t pages_at(const LayerPlan& plan, int64_t length) const {
    return std::min(body_at(plan, length) / kPageTokens, sealed_pages());
  }
  void drop_old_pages(const LayerPlan& plan, int64_t length);

  int64_t length_ = 0;
  int64_t dropped_pages_ = 0;
  std::vector<std::shared_ptr<Page>> pages_;  // held, oldest first
  std::vector<const PageView*> page_views_;   // theirs, for attention
  SideTable tables_[2];                       // by side; empty where the codec has none
  RowBlocks sinks_, window_;                  // 16-bit rows
  bool begun_ = false;                        // whether tokens were ever appended
  std::unique_ptr<LayerState> state_;         // the engine's, from then on
  QueryMeans queries_;                        // where the plan wants them
  int64_t guesses_from_ = -1;                 // the length before guesses; negative where there are none
  std::unique_ptr<Pool::Reservation> promised_;
  int64_t promised_tokens_ = 0;
};

}  // namespace kvasir
