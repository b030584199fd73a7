// An engine holds the bytes of a cache and computes on them: with the kernels of this machine (engine/host), or on a
// device (engine/cuda). The cache keeps the books: which tokens are where, budgets, locks. It calls an engine with the
// locks held that the call needs, so engines see appends, shrinks and releases in an order that makes sense.
//
// What an engine has no verb of its own for goes through this machine: rows come down as float32, parts of pages in the
// layout of docs/format.md, and go up again. Both are exact.
//
// An engine may work behind the caller's back. Then it keeps the order of calls, and whoever gets bytes back waits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "base/row_views.h"
#include "engine/arena.h"
#include "engine/layer_plan.h"

namespace kvasir {

// Token rows as they come in, by side, with their strides spelled out.
struct TokenRows {
  RowsView sides[2];
  int64_t tokens = 0;
  bool on_device = false;  // in the memory of the engine's device, and ready in the order of `stream`
  void* stream = nullptr;
};

// Queries and results in the memory of the engine's device, in place of those of an AttentionRequest; strides are
// spelled out.
struct DeviceQueries {
  RowsView queries;
  MutableRowsView outputs;
  float* log_sums;  // or null
  void* stream;
};

// A page about to be sealed.
struct NewPage {
  const PageView* view;
  uint8_t* data;   // its memory, the engine's
  int64_t number;  // counted from the sinks on
};

// The heads of parts that vary in size (CodecKernels::lay_out), and the sizes of all parts. Where the engine lays parts
// out itself (Append::lay_out), heads are its own to keep.
struct PartHeads {
  std::vector<uint32_t> sizes;    // [page][part]; 0 where the part does not vary
  std::vector<uint8_t> bytes[2];  // by side: [page][kv_head][head_bytes]
  std::vector<int64_t> varying;   // [page]: bytes beyond what its shape says

  // Null where the side does not vary.
  const uint8_t* head(const AttentionLayer& layer, int64_t page, int side, int kv_head) const {
    const size_t part = static_cast<size_t>(page) * layer.kv_heads + kv_head;
    return bytes[side].empty() ? nullptr : bytes[side].data() + part * layer.formats[side].head_bytes;
  }
};

class LayerState;

// An append to one sequence under way: open, then seal where pages are to be. It is one of several (Appends).
class Append {
 public:
  explicit Append(const LayerPlan& plan, int64_t tokens) : plan_(plan), tokens_(tokens) {}
  virtual ~Append() = default;
  int64_t tokens() const { return tokens_; }
  // Of them, those whose rows are there when pages are sealed: all, or in an Extension none.
  virtual int64_t present() const { return tokens_; }

  // The rows go behind what `before` holds, and its oldest `pages` pages of body tokens (those after the sinks) that
  // are in no page yet are to be sealed. `before` must stay as it is until fill.
  virtual void open(const SequenceView& before, int64_t pages) = 0;
  // Body tokens first .. first + count - 1 of one kv head, as float16 values: out[count][stride]. From many threads.
  virtual void rows(Side side, int kv_head, int64_t first, int64_t count, float* out, int stride) const = 0;
  // What CodecKernels::lay_out does for all pages, by the queries that `sums` counts (null: none ever), where the
  // engine has a way of its own to do it; false where it has not. `heads` has room for the sizes of parts, and for
  // `varying`.
  virtual bool lay_out(const uint8_t* /*sums*/, PartHeads&) { return false; }
  // What Codec::grow does, where the engine has a way of its own to do it; false where it has not.
  virtual bool grow(Side, SealInput&, SideTable&, LayerState*) { return false; }
  // Writes the pages. `state` is the layer's, also where this is its first append.
  virtual void seal(const std::vector<NewPage>& pages, const PartHeads& heads, const SideTable (&tables)[2],
                    LayerState* state) = 0;

 protected:
  // One part as the codec's kernels of this machine write it, at `out`.
  void encode_part(const NewPage& page, Side side, int kv_head, const uint8_t* head, const SideTable& table,
                   uint8_t* out) const;
  // Parts of a page, in order: what they are of. `kv_head` is the first that the part holds.
  struct PartPlace {
    Side side;
    int kv_head;
  };
  PartPlace place_of(int part) const;

  const LayerPlan& plan_;
  const int64_t tokens_;
};

// Appends to one layer of many sequences, whose rows were taken together.
class Appends {
 public:
  virtual ~Appends() = default;
  virtual Append& operator[](int index) = 0;

  // Blocks of 16-bit rows as they are after an append; rows from before that remain stand there already.
  struct Target {
    uint8_t* const* sinks;
    uint8_t* const* window;
  };
  // Writes the new rows that are in no page, of each append to its target, or fails and has written none.
  virtual void fill(const Target* targets) = 0;
  // The layers of the sequences are now as `views` says, and their pages stay so until this returns. Takes no memory.
  virtual void finish(const SequenceView* views) = 0;
};

// One more token in all layers of some sequences, without its rows: a captured append writes them when its graph runs.
class Extension {
 public:
  virtual ~Extension() = default;
  // One token for each sequence, in one layer.
  virtual std::unique_ptr<Appends> appends(const LayerPlan& plan) = 0;
  // The same where all have room for it already: they are a token longer now, as `views` says. Takes no memory. Pages
  // stay as they are until this returns, and until `finish` does.
  virtual void tell(const LayerPlan& plan, const SequenceView* views) = 0;
  // The device learns of all appends that were finished, before what comes next on the caller's stream. Takes no
  // memory.
  virtual void finish() = 0;
};

// What an engine knows of one layer of one sequence.
class LayerState {
 public:
  virtual ~LayerState() = default;
};

// A 16-bit row of one block that another row is to equal.
struct RowCopy {
  const uint8_t* from;
  int from_row;
  uint8_t* to;
  int to_row;
};

// A page that drops to its next shape, in place.
struct ShrinkingPage {
  uint8_t* data;
  const PageShape* from;
  const PageShape* to;
  uint32_t* offsets;  // of its parts and its end, null where nothing varies; to be updated
};

// Rows of a page that a cut goes through, on their way to the window: everything that can fail has been done.
class ReturningRows {
 public:
  virtual ~ReturningRows() = default;
  // To the first rows of a list of blocks.
  virtual void write(uint8_t* const* blocks) = 0;
};

// 16-bit rows as images have them: [side][kv_heads][count][head_dim], beside the blocks that they are the first rows
// of.
struct ImageRows {
  const LayerPlan* plan;
  uint8_t* const* blocks;
  int64_t count;
  uint16_t* halves;
};

// A page, and where it goes to in the layout of docs/format.md: PageView::bytes of them.
struct PageOut {
  const LayerPlan* plan;
  const PageView* page;
  uint8_t* out;
};

// Pages on their way from images to memory of the arena. Every byte of an image is read once, and its checksum is that
// of what was read. Nobody may look at the pages before `finish`.
class PagesIn {
 public:
  virtual ~PagesIn() = default;

  // A page whose bytes may be any, and its checksum (base/crc32c.h).
  struct Page {
    const LayerPlan* plan;
    NewPage page;
    int64_t offset;  // in the image; a multiple of 64, as its bytes are
    uint32_t crc;
  };
  // Where bytes were not those that the checksum is of.
  struct Damage {
    int layer;
    int64_t page;
  };
  // The next image, which stays where it is until `end`. Reading may begin.
  virtual void begin(const uint8_t* image, int64_t bytes) = 0;
  // Pages of that image. What is damaged, of these or of earlier ones, may be told here or later.
  virtual std::optional<Damage> write(const std::vector<Page>& pages) = 0;
  virtual void end() noexcept = 0;
  // Waits. What is damaged has been told after that.
  virtual std::optional<Damage> finish() = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;

  virtual const char* name() const = 0;
  virtual std::shared_ptr<Arena> arena() = 0;
  // Once, before any other verb that takes a plan. The plans stay where they are.
  virtual void prepare(const std::vector<LayerPlan>& plans) = 0;

  // 16-bit rows, in blocks of LayerPlan::row_block_bytes ---------------------------------------------------------
  // Memory that was never used becomes a block.
  virtual void clear_rows(const LayerPlan& plan, uint8_t* block) = 0;
  // Rows first .. first + count - 1 of one head of a list of blocks.
  virtual void read_rows(const LayerPlan& plan, const uint8_t* const* blocks, Side side, int kv_head, int64_t first,
                         int64_t count, float* out) = 0;
  // rows: by side, [kv_heads][count][head_dim].
  virtual std::unique_ptr<ReturningRows> take_back(const LayerPlan& plan, int64_t count,
                                                   std::vector<float> (&&rows)[2]) = 0;

  // All heads and both sides of single rows, one after the other: a row may be written after it was read. At most
  // kMaxMaskedTokens of them.
  virtual void copy_rows(const LayerPlan& plan, const RowCopy* copies, int count) = 0;

  // Memory of the arena; the same number of bytes.
  virtual void copy(const uint8_t* from, uint8_t* to, size_t bytes) = 0;

  // Queries, for codecs that go by them: memory as query_sums.h has it -------------------------------------------
  // As it is where nothing was seen.
  virtual void clear_queries(const LayerPlan& plan, uint8_t* sums) = 0;
  // queries: [rows][query_heads][head_dim]; those of run i add to sums[i], and need not be finite.
  virtual void add_queries(const LayerPlan& plan, uint8_t* const* sums, const std::vector<QueryRun>& runs,
                           const float* queries) = 0;
  // The same for queries that were just attended with. For engines with a device; kUnavailable for the others.
  virtual void add_queries(const LayerPlan& plan, uint8_t* const* sums, const std::vector<QueryRun>& runs,
                           const DeviceQueries& device);
  // Mean magnitudes as a page sealed now is to see them: [kv_heads][head_dim]. Waits.
  virtual void read_query_means(const LayerPlan& plan, const uint8_t* sums, float* out) = 0;
  // Pages were sealed: their means stand until there are new ones, and counting begins anew.
  virtual void settle_queries(const LayerPlan& plan, uint8_t* sums) = 0;

  // Appending ---------------------------------------------------------------------------------------------------
  // Takes the rows: checked, and scaled where the layer scales its keys. The first counts[0] tokens are those of the
  // first append, and so on. Throws kNotFinite; for rows on a device, those that it found since it was last asked.
  // Where there are no tokens, whole pages of what is there are sealed, and nothing is asked.
  virtual std::unique_ptr<Appends> begin_appends(const LayerPlan& plan, const TokenRows& rows,
                                                 const std::vector<int64_t>& counts) = 0;
  // For engines with a device; kUnavailable for the others. `count` sequences, after what is on the stream now.
  virtual std::unique_ptr<Extension> extend(int count, void* stream);
  // Whether what a caller does on the stream now goes into a graph.
  virtual bool capturing(void* /*stream*/) const { return false; }
  // Into that graph: rows of one token of each sequence, the newest that it has when the graph runs.
  virtual void capture_append(const LayerPlan& plan, const TokenRows& rows, const std::vector<SequenceView>& views);
  // Null where the engine keeps nothing of its own.
  virtual std::unique_ptr<LayerState> make_state(const LayerPlan& plan) = 0;
  // Makes ready for `pages` pages and for these side tables, so that update needs no memory. The layer may stay as it
  // is after that.
  virtual void reserve(LayerState* state, int64_t pages, const SideTable (&tables)[2]) = 0;
  // The layer of a sequence has changed, and is now as `view` says. Its pages stay so until this returns.
  virtual void update(const LayerPlan& plan, const SequenceView& view, LayerState* state) = 0;

  // The bytes of a part, in the layout of docs/format.md. Valid until this thread asks again.
  virtual const uint8_t* part(const LayerPlan& plan, const PageView& page, Side side, int kv_head) = 0;
  // What Codec::count_widths looks at; the same otherwise.
  virtual const uint8_t* part_widths(const LayerPlan& plan, const PageView& page, Side side, int kv_head) {
    return part(plan, page, side, kv_head) + page.format(side).head_offset(kv_head);
  }
  // All of them, or none where memory runs out.
  virtual void shrink(const LayerPlan& plan, const std::vector<ShrinkingPage>& pages) = 0;

  // Saving and restoring ----------------------------------------------------------------------------------------
  // Memory of the arena, down to this machine and up from it. Waits.
  virtual void download(const uint8_t* from, uint8_t* to, size_t bytes) = 0;
  virtual void upload(const uint8_t* from, uint8_t* to, size_t bytes) = 0;
  // Rows down to this machine and up from it. Reading waits; writing has read them. Those that are written must be such
  // as can be appended, and rows of their last block that are not must be clear.
  virtual void read_halves(const std::vector<ImageRows>& rows) = 0;
  virtual void write_halves(const std::vector<ImageRows>& rows) = 0;
  // Whole pages, and their checksums (base/crc32c.h). Waits.
  virtual std::vector<uint32_t> read_pages(const std::vector<PageOut>& pages) = 0;
  // Memory of this machine that images are read from in place; null where any memory is such.
  virtual std::shared_ptr<uint8_t> image_memory(size_t) { return nullptr; }
  // The way back, for pages of fixed size that any bytes will do for.
  virtual std::unique_ptr<PagesIn> pages_in() = 0;
  // And for the others, one by one. What a page of docs/format.md takes in memory of the arena:
  virtual int64_t stored_bytes(const LayerPlan&, const PageView& page, const uint8_t*) {
    return static_cast<int64_t>(page.bytes());
  }
  // Writes the page; `page.data` has so many bytes, and `from` is what read_pages would give.
  virtual void write_page(const LayerPlan& plan, const NewPage& page, const uint8_t* from) = 0;

  // Attention ---------------------------------------------------------------------------------------------------
  // By the layer of the plan, on rows of the layer that it takes them from.
  struct Tiles {
    int64_t computed;
    int64_t fallback;  // of them, by a slower way than the engine's best
  };
  virtual Tiles attend(const LayerPlan& plan, const AttentionRequest& request) = 0;
  // For engines with a device; kUnavailable for the others.
  virtual Tiles attend(const LayerPlan& plan, const AttentionRequest& request, const DeviceQueries& device);
};

// Shrinks a page with the kernels of this machine, and returns its bytes after that.
size_t shrink_page(const LayerPlan& plan, const ShrinkingPage& page);

}  // namespace kvasir
