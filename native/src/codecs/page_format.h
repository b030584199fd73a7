// What kernels must know of a page. Plain data: kernels are compiled for many machines, and must not drag in library
// code that the linker could share between them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvasir/types.h"

namespace kvasir {

constexpr int kMaxHeadDim = 256;
// Of rows that keys and values share.
constexpr int kMaxRowDim = 576;

// Which elements of a page share parameters: a channel over consecutive tokens, or a token over consecutive channels.
enum class Axis : int { kChannel = 0, kToken = 1 };

// Where the codes of a group stand in its range: from end to end, or each in the middle of a cell of its own.
// codecs/uniform/formula.h has both.
enum class Grid : int { kEnds = 0, kCells = 1 };

// How a page holds elements, as far as codecs have it in common.
enum class Elements : int {
  kOwn = 0,       // in the codec's own way
  kHalves = 1,    // float16, as they are
  kCodes = 2,     // min-max codes (codecs/uniform), rounded at their width
  kNarrowed = 3,  // min-max codes, rounded at 16 bits and narrowed from there (codecs/progressive)
};

// What a codec was given to know of a layer: codebooks, bases. Its kernels know what stands behind it.
class PageModel {
 public:
  virtual ~PageModel() = default;

  // What tells it from others, which several layers may share, and its size in float16: what reading pages needs beside
  // them. Forms that make encoding and attention fast are not counted.
  struct Codebook {
    const void* identity;
    int64_t bytes;
  };
  virtual Codebook codebook() const = 0;
  // SHA-256 of all that decides what pages mean and how they are written: what tells models apart on other machines.
  virtual void content(uint8_t (&digest)[32]) const = 0;
};

// One side of one layer, fixed when the cache is built.
struct PageFormat {
  Side side = Side::kKeys;
  int head_dim = 0;
  int bits = 16;
  Elements elements = Elements::kOwn;
  Axis axis = Axis::kChannel;
  Grid grid = Grid::kEnds;  // of min-max codes
  int group = 0;            // elements along the axis that share parameters
  size_t page_bytes = 0;    // one kv head of one page, a multiple of 64; 0 where that varies
  size_t head_bytes = 0;    // where it varies: the most bytes that CodecKernels::lay_out writes
  float numbers[6] = {};    // the codec's own options; its format.h says which, and reads those that are no floats
  int order = 0;            // of formats that shrink, where `bits` does not tell the wider from the narrower: see width
  int heads = 1;  // kv heads that a part holds: one, or all of the layer's where the codec takes them together
  int terms = 0;  // keys: numbers that a query has for all pages, from CodecKernels::begin_keys
  int sums = 0;   // values: sums that a row collects over all pages, for CodecKernels::end_values
  const PageModel* model = nullptr;  // what the codec was given to know, for those that are

  bool varies() const { return head_bytes != 0; }
  // Pages that are wider in this sense shrink before others, and every shrink makes it less.
  int width() const { return order != 0 ? order : bits; }
  // Where a part of this size has what it holds of a kv head; for parts whose heads stand one after the other.
  size_t head_offset(int kv_head) const { return static_cast<size_t>(kv_head % heads) * (page_bytes / heads); }
};

// What a page sees of the vectors in its side table (side_table.h), for one kv head.
struct SideView {
  const uint16_t* const* vectors = nullptr;  // [count], float16, oldest first
  int count = 0;
  int fixed = 0;    // vectors that every page sees
  int first = 0;    // label l > fixed means vector first + l - 1
  int visible = 0;  // labels of the page, "none" not counted

  // Index + 1 of the labelled vector; 0 for none.
  int entry(int label) const { return label <= fixed ? label : label + first; }
};

}  // namespace kvasir
