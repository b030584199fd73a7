#include "codecs/codec.h"

#include "codecs/f16/format.h"

namespace kvasir {
namespace {

constexpr CodecOption kNoOptions[] = {{nullptr, nullptr}};

PageFormat configure(Side side, int bits, int head_dim, const CodecOptions&) {
  PageFormat format;
  format.side = side;
  format.bits = bits;
  format.elements = Elements::kHalves;
  format.head_dim = head_dim;
  format.page_bytes = f16::page_bytes(head_dim);
  return format;
}

}  // namespace

extern const Codec f16_codec;
const Codec f16_codec = []() constexpr {
  Codec codec = {
      "f16", "16-bit floating point, lossless for the window's elements", 1u << 16, kNoOptions, configure,
  };
  codec.alone = true;
  codec.turns = true;
  return codec;
}
();

}  // namespace kvasir
