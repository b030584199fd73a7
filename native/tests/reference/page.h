// Pages read and written from docs/format.md alone; shares no header with the library.
//
// A codec of the registry must have a row in reference_codecs(): tests that walk the registry fail without one. Each
// codec's own source in this folder adds it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace reference {

constexpr int kTokens = 128;

enum class Side { kKeys = 0, kValues = 1 };

// One side of one kv head of a page. axis: 0 = CHANNEL, 1 = TOKEN. group: elements that share parameters.
struct PageShape {
  Side side;
  int head_dim;
  int bits;
  int axis;
  int group;
  bool cells = false;  // grid CELLS: codes are those of equal cells, and stand for their middles
  std::map<std::string, double> options = {};  // for codecs that choose by them
};

// A page taken apart. (Its size may depend on what is in it: see the codec.) All matrices are [128][head_dim]; element
// = lo + code * step where the codec has codes.
struct PageContent {
  std::vector<float> rows;
  std::vector<float> lo;    // what code 0 stands for
  std::vector<float> step;  // 0 for codecs without codes
  int levels = 0;           // highest code; 0 for codecs without codes
};

// An option setting to test, by the option names of the registry.
using Options = std::map<std::string, double>;

struct ReferenceCodec {
  std::vector<std::string> option_names;
  // Every option setting worth testing on this side at this head dim; none where the codec does not store the side.
  std::vector<Options> (*variants)(Side side, int head_dim);
  PageShape (*shape)(Side side, int bits, int head_dim, const Options& options);
  PageContent (*decode)(const PageShape& shape, const uint8_t* page);
  // The bytes that the format prescribes for these rows ([128][head_dim], float16 values).
  std::vector<uint8_t> (*encode)(const PageShape& shape, const float* rows);
  // Labels at the end of a page, for codecs with a side table. Above, rows are then what is left of the elements, and
  // labels are zeros: pattern_page.h has the rest.
  int label_bytes = 0;
  // Codecs that need a codebook have tests of their own, and none of the above: commvq_test.cc.
  bool trained = false;
};

// Adds a row when the program starts.
struct ReferenceRow {
  ReferenceRow(const char* name, const ReferenceCodec& codec);
};
const std::map<std::string, ReferenceCodec>& reference_codecs();

// Throws std::runtime_error that says what to do where the codec has no reference.
const ReferenceCodec& reference_codec(const std::string& name);

}  // namespace reference
