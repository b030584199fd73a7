// Cache: compressed keys and values of many sequences, and attention computed on the compressed form.
//
// Memory layout. All arrays are dense and row-major, in the shapes given at each call; the last index is the channel.
// Keys come in after RoPE. Pointers are borrowed for the call alone, and each element is read once: what a caller
// writes to it meanwhile may or may not count, and does no harm.
//
// Sequences are named by ids that are never reused: a stale id is an error, not a crash. Each layer of a sequence has
// its own length, because engines append layer by layer.
//
// Threads. Every function may be called from any thread. Calls that change one sequence exclude each other and its
// readers; attends overlap. Releasing a sequence, or destroying nothing but ids, during an attend is safe: the attend
// finishes on what it saw. Only destroying the Cache itself must wait until no call is under way.
//
// Cost. append and attend allocate what the cache stores, and for the time of the call a copy of the rows in float16,
// or of the queries. Work is split over threads in a way that does not depend on how many there are
// (CacheConfig::set_threads): same input, same build, same backend, same bits out.
#pragma once

#include <cstdint>
#include <memory>

#include "kvasir/attend.h"
#include "kvasir/config.h"

namespace kvasir {

class CacheStats;

class Cache {
 public:
  // Throws kInvalidArgument or kUnavailable with what is wrong in the config.
  static Cache* create(const CacheConfig& config);
  static void destroy(Cache* cache);
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // Sequences ------------------------------------------------------------------------------------------------
  int64_t new_sequence();
  // Shares sealed pages, and 16-bit rows until one of the two appends to their block (kRowBlockTokens): that copies it.
  // Where codecs go by queries, what was seen of them is copied at once; throws kBudgetExceeded where it does not fit.
  int64_t fork(int64_t sequence);
  // Cuts every layer to at most `length` tokens. A sealed page that the cut goes through is reopened: its remaining
  // tokens return to the window as decoded, in 16 bits. No budget stops a cut: where the reopened rows take more than
  // what goes, and a budget does not hold that, it is overdrawn, by less than a page of 16-bit rows a layer. The bytes
  // count, and until they fit, calls that would need more throw kBudgetExceeded; appends that fit a block, or seal a
  // page and so give back more than they take, go on. Throws kInvalidArgument where a sliding-window layer no longer
  // has the tokens that the shorter sequence would see (a step back of kPageTokens is always possible); nothing has
  // changed then in any layer.
  void truncate(int64_t sequence, int64_t length);
  void release(int64_t sequence);

  // Steps ----------------------------------------------------------------------------------------------------
  // A step of a model appends to one layer after the other. An append that fails changes nothing in its layer, but the
  // layers before it have the step's tokens by then. Two ways to keep them even:
  //
  // reserve takes room for `tokens` more tokens in every layer, however they are cut into appends, or throws
  // kBudgetExceeded and changes nothing but that a reserve before it is over. No budget then stops these appends (rows
  // that are refused, kNotFinite, and a machine or device without memory, kOutOfMemory, still do; the promise stands
  // after that). What is not used counts as held until the tokens have come, or until the sequence is forked, truncated
  // or rolled back; reserve(0) gives it back. Pages that will be sealed are paid with the 16-bit rows that they leave
  // behind, but for codecs with side tables or pages that shrink; where pages vary in size ("tiered") by what they may
  // take at most. Room is that for pages at their floor. Where they begin wider, others leave as much as pages can give
  // up for it. Guesses take more than tokens that are sealed: for them, reserve comes after guess.
  void reserve(int64_t sequence, int64_t tokens);
  // Cuts every layer to the length that all of them have, which it returns. Exact where no layer has sealed a page over
  // the tokens that go; else as truncate. No budget stops it.
  int64_t rollback(int64_t sequence);

  // Guesses --------------------------------------------------------------------------------------------------
  // Speculative decoding: guess, append some tokens that may come next to every layer (a tree of them is attended with
  // by masks), keep those of one path.
  //
  // guess: tokens that are appended from now on are guesses, kMaxMaskedTokens at most. All of them, and tokens that
  // plain appends would seal with them, stay in 16 bits. Layers must be of one length. A truncate or rollback that
  // leaves no guess ends it.
  void guess(int64_t sequence);
  // Ends it: of the guesses, counted from 0, those that `kept` lists stay, as if they alone had been appended, in one
  // call a layer, to the bit. `kept` ascends; none may be left (count 0). Layers must be of one length. No budget stops
  // it: blocks that forks share are copied as in truncate, and a page that would be sealed but has no room is sealed by
  // the next append.
  void keep(int64_t sequence, const int* kept, int count);

  // Positions ------------------------------------------------------------------------------------------------
  // Where keys are stored before RoPE in all layers (CacheConfig::set_rope): moves the positions of the tokens from
  // `first` on, and of those to be appended, by `offset`, up or down. Exact, and nothing is encoded anew. A truncate
  // forgets the moves of what it cuts off.
  void shift(int64_t sequence, int64_t first, int64_t offset);
  // Tokens in one layer.
  int64_t length(int64_t sequence, int layer);

  // Append ---------------------------------------------------------------------------------------------------
  // keys, values: [tokens][kv_heads][head_dim]; where they share a row (CacheConfig::set_latent), keys are
  // [tokens][row_dim] and values null, here and in all other ways to append. Any number of tokens; the result does not
  // depend on how a stream of tokens is cut into calls, but for codecs with a side table, which make it from the tokens
  // that are there when the first page is sealed, and for codecs that go by the queries seen until then. Elements are
  // rounded to float16 first. Throws kNotFinite or kBudgetExceeded.
  void append(int64_t sequence, int layer, const float* keys, const float* values, int64_t tokens);
  // The same from IEEE float16 and from bfloat16 bits.
  void append_f16(int64_t sequence, int layer, const uint16_t* keys, const uint16_t* values, int64_t tokens);
  void append_bf16(int64_t sequence, int layer, const uint16_t* keys, const uint16_t* values, int64_t tokens);

  // Some tokens of each of many sequences, counts[i] of sequences[i], in one call: all of them, or nothing. Sequence i
  // has the rows after those of the sequences before it; strides of tokens count through all. Counts may be 0, not all
  // of them; no sequence may be listed twice. The same as one append for each of them, to the bit, unless pages have to
  // shrink for it.
  void append_rows(int layer, const int64_t* sequences, const int64_t* counts, int count, const RowsView& keys,
                   const RowsView& values);

  // Attend ---------------------------------------------------------------------------------------------------
  // All that attention can do: attend.h. Throws kInvalidArgument for what is wrong in the batch, such as more query
  // tokens than a layer holds, before anything is read or written. For codecs that go by queries ("tiered") a
  // sequence's first attend takes memory for their sums, 12 bytes a channel of keys; no budget stops it, as in
  // truncate.
  void attend(const AttendBatch& batch);
  // The same number of query tokens for each sequence; queries, outputs: [count][tokens][query_heads][head_dim], or
  // row_dim and value_dim.
  void attend(int layer, const int64_t* sequences, int count, int tokens, const float* queries, float* outputs);

  // For codecs that go by queries ("tiered"): what attend sees, it observes; queries whose attention is computed
  // elsewhere, those of a prompt, are shown to the sequences here, before their tokens are appended. Of the same shape.
  // Throws kNotFinite, and kBudgetExceeded where the first of them find no room for their sums. Layers whose codec does
  // not care ignore them.
  void observe(int layer, const int64_t* sequences, int count, int tokens, const float* queries);

  // On a device ----------------------------------------------------------------------------------------------
  // For caches of a backend with a device ("cuda"): append and attend on its memory, in the order of one of its streams
  // (a cudaStream_t; null is the default one). Shapes as above; queries and outputs have one type, keys and values too;
  // all begin at multiples of 16 bytes, in memory that the device can reach. Queries and outputs must not overlap.
  // AttendBatch::on_device has all of attention there.
  // The calls return before the work is done, and wait for nothing but what sealing a page must know of it: the
  // patterns that "pattern" adds, and the sizes that "tiered" finds. Throw kUnavailable where there is no device.
  //
  // The device checks what is appended when it gets there. Elements that append would refuse are stored as 0, and the
  // next call of the cache that appends or attends throws kNotFinite, once.
  //
  // A step of decoding can be captured in a CUDA graph, on the stream that it is captured on:
  //
  //   extend(sequences, count, stream);                                 // each is a token longer, in all layers
  //   capture: for each layer append_rows_device, one token of each sequence, and attend with it
  //   run the graph; from then on: extend, new inputs, run the graph; extend, ...
  //
  // A captured append writes the rows of the newest token that a sequence has when the graph runs; extend makes it.
  // Attention with one token a sequence, on dense rows of one type, is captured for all codecs as they are by default,
  // for up to 4096 sequences, commvq 64, and follows sequences that grow, by extend or by plain appends; with patterns
  // and commvq by 32K tokens (outputs are NaN afterwards). For codecs that go by queries it counts those of each run.
  // A graph does not follow shifts, and sees pages that gave up precision from the next extend on. The caller waits for
  // it before other calls read what it writes, and does not run it once one of its sequences is released. After calls
  // that have no stream, such as append and truncate, it may run at once: once there is a graph, they wait for the
  // device. A captured call keeps a workspace for its graph until the cache goes: up to 10 MB, commvq 16 KB a page.
  //
  // extend: one more token for each sequence in all layers, before a graph writes its rows; all sequences, or nothing,
  // but what was reserved for them is given back then. Layers must be of one length, without guesses and shifts. Pages
  // are sealed as append does it, by the tokens that are there: where no window is kept, one step later. After what is
  // on the stream now, and before what comes next; waits for nothing but what sealing must know. Throws
  // kBudgetExceeded. A step that is not to be is taken back by truncate.
  void extend(const int64_t* sequences, int count, void* stream);
  void append_device(int64_t sequence, int layer, const void* keys, const void* values, ElementType type,
                     int64_t tokens, void* stream);
  // append_rows, on the device; strides are multiples of 16 bytes, too.
  void append_rows_device(int layer, const int64_t* sequences, const int64_t* counts, int count, const RowsView& keys,
                          const RowsView& values, void* stream);
  void attend_device(int layer, const int64_t* sequences, int count, int tokens, const void* queries, void* outputs,
                     ElementType type, void* stream);

  // Inspection -----------------------------------------------------------------------------------------------
  // Decoded rows first..first+tokens-1 of one side, out: [tokens][kv_heads][head_dim], or [tokens][row_dim] and
  // [tokens][value_dim].
  void read(int64_t sequence, int layer, Side side, int64_t first, int64_t tokens, float* out);
  // Sealed pages of a layer that are still held (sliding-window layers drop old ones).
  int64_t page_count(int64_t sequence, int layer);
  // Copies the stored bytes of one head's side of a held page, in the layout of docs/format.md, and returns their
  // number. Copies nothing where capacity is smaller. Rows that keys and values share are stored in slices:
  // docs/format.md says which.
  int64_t read_page(int64_t sequence, int layer, int64_t page, Side side, int kv_head, uint8_t* out, int64_t capacity);
  // Vectors in the side table of a layer, such as patterns: as many for each kv head; 0 for codecs without a table.
  int64_t table_size(int64_t sequence, int layer, Side side);
  // Copies the vectors of one head's side table, oldest first, as out: [vectors][head_dim], and returns their number.
  // Copies nothing where capacity, in vectors, is smaller.
  int64_t read_table(int64_t sequence, int layer, Side side, int kv_head, float* out, int64_t capacity);

  // Saving (saving.h) ----------------------------------------------------------------------------------------
  // What the bytes of saved sequences mean: geometry, codecs with their options, codebooks, RoPE, key scaling, the
  // model. Lines of text; the fingerprint is its SHA-256, kDigestBytes. Sequences are restored where it is the same.
  const char* description();
  void fingerprint(uint8_t* out);
  // No block and no state of such a cache has more bytes.
  int64_t most_block_bytes() const;
  int64_t most_state_bytes() const;

  // A snapshot; free it with CacheStats::destroy.
  CacheStats* stats();

 private:
  friend class ImageMemory;
  friend class Restoring;
  friend class Saving;
  explicit Cache(const CacheConfig& config);
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Sums over all sequences at one moment. What forks share counts once.
class CacheStats {
 public:
  static void destroy(CacheStats* stats);

  int64_t sequences() const;
  int64_t budget() const;      // 0: no limit; see truncate and attend for what may pass it
  int64_t bytes() const;       // held now, windows and what is reserved included
  int64_t peak_bytes() const;  // most that was ever held
  // layer: a layer or kAllLayers.
  int64_t layer_bytes(int layer) const;
  int64_t pages(int layer) const;
  int64_t page_bytes(int layer) const;    // bytes of the sealed pages: codes and parameters
  int64_t window_bytes(int layer) const;  // blocks of 16-bit rows, those shared by forks once, and sums of queries
  int64_t table_bytes(int layer) const;   // bytes of side tables, such as patterns; those shared by forks once
  // Bits per stored element of the sealed pages, parameters included; 0 where there are none.
  double page_bits_per_element(int layer) const;
  // Bits per element over everything held, windows included; elements counted once per sequence that sees them.
  double bits_per_element(int layer) const;
  // For trained codecs: bytes of the codebooks in float16, each once however many layers and sequences use it. They
  // belong to the model like its weights: no budget and no other figure counts them, but the one that says so.
  int64_t codebook_bytes(int layer) const;
  double bits_per_element_with_codebooks(int layer) const;

  // Mean width of the codes in the sealed pages; 0 where there are none.
  double code_bits(int layer, Side side) const;
  // Bits per element of one side of the sealed pages, with all that is stored beside codes: parameters, padding,
  // permutations. 0 where there are none.
  double side_bits_per_element(int layer, Side side) const;
  // Channels whose codes have `bits` (0..16) bits, over all sealed pages and kv heads.
  int64_t channels(int layer, Side side, int bits) const;

  // For codecs that shrink, since the cache was built: how often a page dropped to half its bits, the bytes that this
  // freed, and the time that it took, waiting for readers included.
  int64_t shrinks(int layer) const;
  int64_t shrunk_bytes(int layer) const;
  int64_t shrink_nanoseconds(int layer) const;
  // The widths of one layer over time: step i says that, when step_pages pages had been sealed in it, step_bits became
  // the most that all of the next ones had room for.
  int steps(int layer) const;
  int step_bits(int layer, int step) const;
  int64_t step_pages(int layer, int step) const;

  // For codecs with a side table: the share of a side's sealed tokens, over all kv heads, that use one of its vectors,
  // and the share of page parts in which none does. 0 where there are no pages or no table.
  double table_use(int layer, Side side) const;
  double parts_without_table(int layer, Side side) const;

  // What ran: the cache's backend, and tiles computed by it and by a lower one (a codec without kernels there).
  const char* backend() const;
  int64_t tiles() const;
  int64_t fallback_tiles() const;

  ~CacheStats();
  struct Impl;

 private:
  friend class Cache;
  explicit CacheStats(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
