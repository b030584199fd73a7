#include "codecs/codec.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/checks.h"
#include "codecs/commvq/page_models.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

constexpr CodecOption kNoOptions[] = {{nullptr, nullptr}};

[[noreturn]] void refuse(const std::string& text) { throw Error(ErrorCode::kInvalidArgument, "codec commvq: " + text); }

PageFormat configure(Side side, int bits, int head_dim, const CodecOptions&) {
  PageFormat format;
  format.side = side;
  format.bits = bits;
  format.head_dim = head_dim;
  return format;
}

void check_heads(const commvq::KeyModel& keys, int kv_heads, int head_dim) {
  if (keys.page.kv_heads == kv_heads && keys.head_dim == head_dim) return;
  refuse("key codebook is for " + std::to_string(keys.page.kv_heads) + " kv heads of " + std::to_string(keys.head_dim) +
         " channels, the layer has " + std::to_string(kv_heads) + " of " + std::to_string(head_dim));
}

// A nominal width is that of the codes, norms and gains not counted, to the nearest whole number from 1 on.
void check_bits(double bits, int nominal) {
  if (std::max(1L, std::lround(bits)) != nominal) {
    refuse("the codebook has " + float_text(bits) + " bits per element, not " + std::to_string(nominal));
  }
}

std::shared_ptr<const PageModel> attach(PageFormat& format, int kv_heads, const Codebooks& codebooks) {
  format.heads = kv_heads;
  if (format.side == Side::kKeys) {
    if (!codebooks.keys) refuse("has no key codebook: call set_key_codebook");
    const std::shared_ptr<const commvq::KeyModel> keys = commvq::make_key_model(*codebooks.keys, codebooks.refinements);
    check_heads(*keys, kv_heads, format.head_dim);
    check_bits(2.0 * keys->page.index_bits * keys->page.stages / keys->head_dim, format.bits);
    format.page_bytes = keys->page.bytes();
    format.model = keys.get();
    return keys;
  }
  if (!codebooks.values) refuse("has no value codebook: call set_value_codebook");
  const std::shared_ptr<const commvq::ValueModel> values =
      commvq::make_value_model(*codebooks.values, codebooks.encoder.get(), codebooks.flips, kv_heads, format.head_dim);
  check_bits(static_cast<double>(values->page.codes) / (kv_heads * format.head_dim), format.bits);
  format.page_bytes = values->page.bytes();
  format.sums = values->page.codes;
  format.model = values.get();
  return values;
}

constexpr Codec make_codec() {
  Codec codec = {
      "commvq",          "CommVQ: keys before RoPE as sums of trained vectors, values as sums of a codebook's rows",
      1u << 1 | 1u << 2, kNoOptions,
      configure,
  };
  codec.attach = attach;
  codec.turns = true;
  codec.before_rope = true;
  codec.trained = true;
  return codec;
}

}  // namespace

extern const Codec commvq_codec;
const Codec commvq_codec = make_codec();

}  // namespace kvasir
