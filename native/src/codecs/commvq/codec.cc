#include "codecs/codec.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "codecs/commvq/model.h"
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

void check_heads(const char* whose, int kv_heads, int head_dim, int wanted_heads, int wanted_dim) {
  if (kv_heads == wanted_heads && head_dim == wanted_dim) return;
  refuse(std::string(whose) + " codebook is for " + std::to_string(kv_heads) + " kv heads of " +
         std::to_string(head_dim) + " channels, the layer has " + std::to_string(wanted_heads) + " of " +
         std::to_string(wanted_dim));
}

// A nominal width is that of the codes, norms and gains not counted, to the nearest whole number from 1 on.
void check_bits(double bits, int nominal) {
  if (std::max(1L, std::lround(bits)) != nominal) {
    refuse("the codebook has " + std::to_string(bits) + " bits per element, not " + std::to_string(nominal));
  }
}

void attach(PageFormat& format, int kv_heads, const PageModel& model) {
  if (format.side == Side::kKeys) {
    const auto& keys = dynamic_cast<const commvq::KeyModel&>(model);
    check_heads("key", keys.page.kv_heads, keys.head_dim, kv_heads, format.head_dim);
    check_bits(2.0 * keys.page.index_bits * keys.page.stages / keys.head_dim, format.bits);
    format.page_bytes = keys.page.bytes();
  } else {
    const auto& values = dynamic_cast<const commvq::ValueModel&>(model);
    check_heads("value", values.kv_heads, values.head_dim, kv_heads, format.head_dim);
    check_bits(static_cast<double>(values.page.codes) / (kv_heads * format.head_dim), format.bits);
    format.page_bytes = values.page.bytes();
    format.sums = values.page.codes;
  }
  format.heads = kv_heads;
  format.model = &model;
}

constexpr Codec make_codec() {
  Codec codec = {
      "commvq",          "CommVQ: keys before RoPE as sums of trained vectors, values as sums of a codebook's rows",
      1u << 1 | 1u << 2, kNoOptions,
      configure,
  };
  codec.attach = attach;
  codec.turns = true;
  return codec;
}

}  // namespace

extern const Codec commvq_codec;
const Codec commvq_codec = make_codec();

}  // namespace kvasir
