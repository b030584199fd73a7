#include "codecs/codec.h"

#include <algorithm>
#include <string>

#include "base/checks.h"
#include "codecs/uniform/format.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

constexpr CodecOption kOptions[] = {
    {"axis", "0: parameters per channel over tokens (default for keys); 1: per token over channels (values)"},
    {"group", "elements that share parameters: 32, 64, 128 or all channels; default the longest"},
    {"grid", "0: levels from the least to the greatest element; 1: cells; default 1 at 1 and 2 bits, else 0"},
    {nullptr, nullptr},
};

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, "codec uniform: " + text);
}

PageFormat configure(Side side, int bits, int head_dim, const CodecOptions& options) {
  PageFormat format;
  format.side = side;
  format.head_dim = head_dim;
  format.bits = bits;
  format.elements = Elements::kCodes;

  const double axis = option_of(options, "axis", side == Side::kKeys ? 0 : 1);
  if (axis != 0 && axis != 1) refuse("axis must be 0 or 1, not " + float_text(axis));
  format.axis = static_cast<Axis>(axis);

  const double grid = option_of(options, "grid", bits <= 2 ? 1 : 0);
  if (grid != 0 && grid != 1) refuse("grid must be 0 or 1, not " + float_text(grid));
  format.grid = static_cast<Grid>(grid);

  const int longest = format.axis == Axis::kChannel ? kPageTokens : head_dim;
  const double group = option_of(options, "group", std::min(longest, 128));
  if (group != 32 && group != 64 && group != 128 && group != longest) {
    refuse("group must be 32, 64, 128 or the whole dimension (" + std::to_string(longest) + "), not " +
           float_text(group));
  }
  format.group = std::min(static_cast<int>(group), longest);
  format.page_bytes = uniform::layout_of(format).bytes;
  return format;
}

}  // namespace

extern const Codec uniform_codec;
const Codec uniform_codec = []() constexpr {
  Codec codec = {
      "uniform",
      "asymmetric min-max quantisation per channel or per token, as in KIVI",
      1u << 1 | 1u << 2 | 1u << 3 | 1u << 4 | 1u << 8 | 1u << 16,
      kOptions,
      configure,
  };
  codec.alone = true;
  return codec;
}
();

}  // namespace kvasir
