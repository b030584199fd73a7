#include "codecs/codec.h"

#include <string>

#include "base/checks.h"
#include "codecs/progressive/formula.h"
#include "codecs/uniform/format.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

constexpr CodecOption kOptions[] = {
    {"axis", "0: parameters per channel over tokens (default for keys); 1: per token over channels (values)"},
    {"group", "elements that share parameters: 32, 64, 128 or all channels; default the longest"},
    {"grid", "0: levels from the least to the greatest element, as in PM-KVQ; 1: cells (default)"},
    {"floor", "least bits that a page may shrink to: 2 (default), 4, 8 or 16"},
    {"shift", "how codes of grid 0 shrink: 0 equivalent (default), 1 direct, 2 modified; 1 and 2 are for comparison"},
    {nullptr, nullptr},
};

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, "codec progressive: " + text);
}

PageFormat configure(Side side, int bits, int head_dim, const CodecOptions& options) {
  const double floor = option_of(options, "floor", 2), shift = option_of(options, "shift", 0);
  CodecOptions layout = options;
  layout.erase("floor");
  layout.erase("shift");
  layout.emplace("grid", 1.0);
  if ((floor != 2 && floor != 4 && floor != 8 && floor != 16) || floor > bits) {
    refuse("floor must be 2, 4, 8 or 16 and at most the " + std::to_string(bits) + " bits of new pages, not " +
           float_text(floor));
  }
  if (shift != 0 && shift != 1 && shift != 2) refuse("shift must be 0, 1 or 2, not " + float_text(shift));
  if (shift != 0 && option_of(layout, "grid", 0) != 0) refuse("shift is for grid 0: cells have one way to shrink");
  PageFormat format = configure_codec(codec_index("uniform"), side, bits, head_dim, layout);
  format.elements = Elements::kNarrowed;
  format.numbers[progressive::kFloor] = static_cast<float>(floor);
  format.numbers[progressive::kShift] =
      static_cast<float>(format.grid == Grid::kCells ? static_cast<double>(progressive::Shift::kDirect) : shift);
  return format;
}

bool narrower(const PageFormat& format, PageFormat& next) {
  if (format.bits <= progressive::floor_of(format)) return false;
  next = format;
  next.bits = format.bits / 2;
  next.page_bytes = uniform::layout_of(next).bytes;
  return true;
}

}  // namespace

extern const Codec progressive_codec;
const Codec progressive_codec = []() constexpr {
  Codec codec = {
      "progressive",
      "PM-KVQ: min-max codes that drop from 16 bits to 8, 4 and 2 in place, as memory runs out",
      1u << 2 | 1u << 4 | 1u << 8 | 1u << 16,
      kOptions,
      configure,
  };
  codec.narrower = narrower;
  codec.alone = true;
  return codec;
}
();

}  // namespace kvasir
