// The verbs of a backend. A kernel takes pointers, sizes and plain data; it allocates nothing, checks nothing and
// cannot fail. Backends form a ladder (scalar below all); a null verb means "use the next lower rung", which stats
// count.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/codebook.h"
#include "base/match.h"
#include "codecs/page_format.h"
#include "kernels/matrix.h"

namespace kvasir {

// Most rows (query heads of a kv head, times query tokens) that one tile call takes.
constexpr int kMaxTileRows = 32;

// Tables by row and entry keep four rows side by side, so that an entry is one small vector: [(rows + 3) /
// 4][entries][4].
constexpr int kEntryRows = 4;
constexpr size_t entry_index(int row, int entry, int entries) {
  return (static_cast<size_t>(row / kEntryRows) * entries + entry) * kEntryRows + row % kEntryRows;
}
constexpr size_t entry_floats(int rows, int entries) {
  return static_cast<size_t>(rows + kEntryRows - 1) / kEntryRows * entries * kEntryRows;
}

// The input rows of a tile: queries for keys, softmax weights for values.
struct TileInput {
  const float* rows;  // [count][stride]
  int count;          // 1..kMaxTileRows
  int stride;
  bool fast;     // Precision::kFast
  int head = 0;  // which kv head of the part

  // Where keys are stored before RoPE: [kPageTokens][2][head_dim / 2], the cosines and sines by which token t of the
  // tile turns. Query rows are then planar (base/rope.h), and turned back to the tile's first position.
  const float* turns = nullptr;
  bool neighbours = false;  // RopePairs::kNeighbours

  // For codecs with a side table: what the page sees of it, and numbers per row and entry (SideView::entry; 0 is
  // "none"), four rows side by side: see entry_index.
  const SideView* side = nullptr;
  const float* terms = nullptr;  // keys: the product of query and vector, from begin_keys
  float* sums = nullptr;         // values: the weights of the vector's tokens, added up for end_values
  int entries = 0;               // at least side->count + 1
};

// One codec on one backend. `page` is one kv head of one page, 64-byte aligned.
struct CodecKernels {
  // rows: [kPageTokens][head_dim], float16 values held as float32.
  void (*encode)(const PageFormat& format, const float* rows, uint8_t* page);
  void (*decode)(const PageFormat& format, const uint8_t* page, float* rows);
  // scores[row * kPageTokens + token] = <query row, key token>, for all kPageTokens tokens.
  void (*key_scores)(const PageFormat& format, const uint8_t* page, const TileInput& queries, float* scores);
  // outputs[row * head_dim + c] += sum over tokens of weight[row][token] * value[token][c], for kPageTokens weights.
  void (*value_sum)(const PageFormat& format, const uint8_t* page, const TileInput& weights, float* outputs);

  // For codecs with a side table, once for all pages of a sequence, with side.count + 1 and `entries` entries:
  // terms[entry] = <query, vector>, and outputs[row * head_dim + c] += sum over entries of sums[entry] * vector[c].
  void (*begin_keys)(const PageFormat& format, const SideView& side, const TileInput& queries, float* terms) = nullptr;
  // Formats with `terms` or `sums` of their own have a row of them for each input row instead. Of `weights` end_values
  // has count, head, sums and entries.
  void (*end_values)(const PageFormat& format, const SideView& side, const TileInput& weights,
                     float* outputs) = nullptr;

  // For codecs that can shrink: the same part in the next narrower format (Codec::narrower). `out` lies at or before
  // `page`, and may overlap it.
  void (*shrink)(const PageFormat& from, const PageFormat& to, const uint8_t* page, uint8_t* out) = nullptr;

  // For codecs whose parts vary in size: decides how these rows are stored, writes the head of the part (at most
  // format.head_bytes, which no part is shorter than) and returns the bytes of the whole. encode finds the head in
  // place. importance: [head_dim], the mean magnitude of the queries in each channel.
  size_t (*lay_out)(const PageFormat& format, const float* rows, const float* importance, uint8_t* head) = nullptr;
};

// Verbs that need no codec: the 16-bit rows of windows and sinks, and the softmax.
struct RowKernels {
  // True where all `count` elements are finite and at most kMaxMagnitude.
  bool (*check)(const void* elements, ElementType type, size_t count);
  // float16 bits of `count` elements, rounded to nearest even.
  void (*to_half)(const void* elements, ElementType type, size_t count, uint16_t* out);
  void (*from_half)(const uint16_t* halves, size_t count, float* out);
  // As key_scores and value_sum, over `tokens` (1..kPageTokens) float16 rows [tokens][head_dim].
  void (*key_scores)(const uint16_t* rows, int tokens, int head_dim, const TileInput& queries, float* scores);
  void (*value_sum)(const uint16_t* rows, int tokens, int head_dim, const TileInput& weights, float* outputs);
  // The same over float32 rows, of which `stride` channels apart the first `dim` count: a multiple of 16. outputs are
  // [count][dim].
  void (*float_scores)(const float* rows, int tokens, int stride, int dim, const TileInput& queries, float* scores);
  void (*float_sum)(const float* rows, int tokens, int stride, int dim, const TileInput& weights, float* outputs);
  // key_scores of rows before RoPE: queries.turns is set.
  void (*turned_scores)(const uint16_t* rows, int tokens, int head_dim, const TileInput& queries, float* scores);
  // One step of an online softmax for one row. scores[begin..end) are visible, begin < end; on return
  // scores[0..kPageTokens) holds exp(score - max), 0 where invisible. Updates max and sum, and multiplies
  // output[0..head_dim) by exp(old max - new max). Before the first step max is -infinity, sum 0 and output all 0.
  void (*softmax)(float* scores, int begin, int end, float* max, float* sum, float* output, int head_dim);
  // scores[begin..end) become cap * tanh(score / cap), off by less than 2e-6 of that; others of 0..kPageTokens may be
  // written to.
  void (*soft_cap)(float* scores, int begin, int end, float cap);
};

struct Backend {
  const char* name;
  const char* summary;
  bool (*available)();
  const RowKernels* rows;
  const CodecKernels* const* codecs;  // in the order of codecs.def; verbs may be null
  const MatchKernels* match = nullptr;
  const MatrixKernels* matrix = nullptr;
  const CodebookKernels* codebooks = nullptr;
};

// Best first; the last is "scalar", which has every verb.
int backend_list_size();
const Backend& backend_at(int index);
// The backend that the environment asks for, one of these or a device; "auto" where it does not. The one reader of the
// variable.
constexpr char kBackendVariable[] = "KVASIR_BACKEND";
const char* wanted_backend();
// Throws kInvalidArgument for unknown names, kUnavailable for those this machine cannot run; "auto" is the wanted one,
// if it is one of these and can run, or else the best.
int backend_index(const char* name);

// The verbs that a cache uses for one codec: the backend's, with gaps filled from below.
struct ResolvedCodec {
  CodecKernels kernels;
  bool fallback;  // whether key_scores or value_sum came from a lower backend
};
ResolvedCodec resolve_codec(int backend, int codec);
const MatchKernels& resolve_match(int backend);
const MatrixKernels& resolve_matrix(int backend);
const CodebookKernels& resolve_codebooks(int backend);

}  // namespace kvasir
