// The codec contract: how one side (keys or values) of one kv head of one page is stored.
//
// A codec is a folder with
//   format.h   the page layout as offsets and sizes, written down once for all backends
//   formula.h  the arithmetic of one element, for host and device
//   codec.cc   its row of the registry: name, widths, options, and `configure`, which checks and sizes
// and kernels per backend (kernels/kernels.h). One line in codecs.def adds it to the registry and the build.
//
// Pages are encoded from float16 values (the window's), so that a group's minimum is exact in its stored parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "codecs/page_format.h"
#include "codecs/side_table.h"

namespace kvasir {

// What the user asked for, by option name. Codecs read what they know; `configure` refuses the rest.
using CodecOptions = std::map<std::string, double>;
inline double option_of(const CodecOptions& options, const char* name, double otherwise) {
  const auto found = options.find(name);
  return found == options.end() ? otherwise : found->second;
}

class KeyCodebook;
class ValueCodebook;
class ValueEncoder;
class Basis;

// What a layer was given for codecs that know more than their options (CacheConfig::set_key_codebook,
// set_value_codebook, set_basis).
struct Codebooks {
  std::shared_ptr<const KeyCodebook> keys;
  int refinements = 0;
  std::shared_ptr<const ValueCodebook> values;
  std::shared_ptr<const ValueEncoder> encoder;
  int flips = 0;
  std::shared_ptr<const Basis> bases[2];  // by side
};

struct CodecOption {
  const char* name;
  const char* summary;
};

struct Codec {
  const char* name;
  const char* summary;
  uint32_t widths;             // bit n set: n bits per element are supported
  const CodecOption* options;  // ends with a null name
  // Throws kInvalidArgument where the request makes no sense. `bits` is one of `widths` and the options are known.
  PageFormat (*configure)(Side side, int bits, int head_dim, const CodecOptions& options);

  // For codecs with a side table; null for the others.
  //
  // Adds what the pages about to be sealed need to `table`. On failure the caller drops the table.
  void (*grow)(const PageFormat& format, SealInput& input, SideTable& table) = nullptr;
  // The halves that one grow takes for so many pages, where the table has vectors already or not.
  int64_t (*growth)(const PageFormat& format, int kv_heads, int64_t pages, bool has_vectors) = nullptr;
  // Before encode: turns `rows` into what is to be encoded and writes the codec's own bytes of the page.
  void (*flatten)(const PageFormat& format, const SideView& side, const MatchKernels& match, float* rows,
                  uint8_t* page) = nullptr;
  // After decode: turns the decoded rows back.
  void (*restore)(const PageFormat& format, const SideView& side, const uint8_t* page, float* rows) = nullptr;
  // Tokens of the page that use a vector of the table.
  int (*labelled)(const PageFormat& format, const uint8_t* page) = nullptr;

  // For codecs whose pages can give up bits in place (CodecKernels::shrink); null for the others. The next narrower
  // format, or false at the floor.
  bool (*narrower)(const PageFormat& format, PageFormat& next) = nullptr;

  // For codecs whose pages go by what a layer was given: makes a model of it, or null where the codec needs none, and
  // the format one of pages by it, for so many kv heads. Throws kInvalidArgument where something is missing or they do
  // not fit each other.
  std::shared_ptr<const PageModel> (*attach)(PageFormat& format, int kv_heads, const Codebooks& codebooks) = nullptr;
  bool alone = false;        // whether CodecKernels::decode gives rows from nothing but the bytes of their part
  bool turns = false;        // whether key_scores can turn keys by RoPE: see TileInput::turns
  bool before_rope = false;  // whether keys must come before it
  bool trained = false;      // whether attach needs a codebook
  uint32_t sides = 3;        // bit s set: stores side s
  // For codecs that choose by what queries look at: whether this format does. The cache then keeps mean magnitudes.
  bool (*wants_queries)(const PageFormat& format) = nullptr;
  // For codecs whose channels differ in width: adds the number of those of n bits to channels[n]. Looks at the first
  // kWidthBytes of what a part holds of a kv head.
  void (*count_widths)(const PageFormat& format, const uint8_t* head, int64_t* channels) = nullptr;
  // For codecs whose parts vary in size: the bytes of a part, whatever is in it.
  struct PartRange {
    size_t least, most;
  };
  PartRange (*part_range)(const PageFormat& format) = nullptr;
  // For codecs whose bytes say where to look (labels, channels, sizes): whether those of a part that comes from outside
  // stay within it and the side table. `part` has `bytes` bytes, page_bytes of them where that does not vary. Null: any
  // bytes can be read.
  bool (*valid)(const PageFormat& format, const SideView& side, const uint8_t* part, size_t bytes) = nullptr;
};
constexpr int kWidthBytes = 3 * kMaxHeadDim / 8;

// The registry, in the order of codecs.def.
int codec_index(const std::string& name);  // throws kInvalidArgument with the names there are
const Codec& codec_at(int index);

// Checks width and option names against the codec's row, then configures.
PageFormat configure_codec(int index, Side side, int bits, int head_dim, const CodecOptions& options);

}  // namespace kvasir
