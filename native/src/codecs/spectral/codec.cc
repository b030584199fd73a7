#include "codecs/codec.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/checks.h"
#include "codecs/basis.h"
#include "codecs/spectral/format.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

constexpr CodecOption kOptions[] = {
    {"code_bits", "bits of a channel's codes, on average; to a multiple of 8 over the head dim, default: the width"},
    {"floor_bits", "code bits that a page may give up all others of where memory runs out; default: none are given up"},
    {nullptr, nullptr},
};

// More than any page can give up.
constexpr int kMostSteps = 1 << 10;

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, "codec spectral: " + text);
}

// What both sides have for every row, page or not: coefficients of a query, or sums of weighted ones.
void set_size(PageFormat& format, int kv_heads) {
  format.heads = kv_heads;
  format.page_bytes = spectral::layout_of(format).bytes * static_cast<size_t>(kv_heads);
  format.terms = format.side == Side::kKeys ? format.head_dim : 0;
  format.sums = format.side == Side::kValues ? format.head_dim : 0;
}

PageFormat configure(Side side, int bits, int head_dim, const CodecOptions& options) {
  PageFormat format;
  format.side = side;
  format.bits = bits;
  format.head_dim = head_dim;
  const double mean = option_of(options, "code_bits", bits);
  if (!(mean > 0 && mean <= 8)) refuse("code_bits must be above 0 and at most 8, not " + float_text(mean));
  const double floor = option_of(options, "floor_bits", mean);
  if (!(floor > 0 && floor <= mean)) {
    refuse("floor_bits must be above 0 and at most the " + float_text(mean) + " code bits of new pages, not " +
           float_text(floor));
  }
  const auto tiles = [&](double bits) { return std::max(1.0, std::round(bits * head_dim / spectral::kTile)); };
  format.numbers[spectral::kTileBits] = static_cast<float>(tiles(mean));
  if (tiles(floor) < tiles(mean)) {
    format.numbers[spectral::kFloorBits] = static_cast<float>(tiles(floor));
    format.order = kMostSteps;
  }
  set_size(format, 1);
  return format;
}

// About an eighth of a bit an element. Pages that gave up as many steps are equally wide, whatever they began with: the
// plan of layers and sides stays what it is, and all errors grow alike.
bool narrower(const PageFormat& format, PageFormat& next) {
  const int floor = spectral::floor_bits(format), step = std::max(1, format.head_dim / (8 * spectral::kTile));
  if (floor == 0 || spectral::tile_bits(format) <= floor) return false;
  next = format;
  next.numbers[spectral::kTileBits] = static_cast<float>(std::max(floor, spectral::tile_bits(format) - step));
  --next.order;
  set_size(next, format.heads);
  return true;
}

// Without a basis rows are stored as they are.
std::shared_ptr<const PageModel> attach(PageFormat& format, int kv_heads, const Codebooks& given) {
  const std::shared_ptr<const Basis>& basis = given.bases[static_cast<int>(format.side)];
  set_size(format, kv_heads);
  if (!basis) return nullptr;
  if (basis->kv_heads() != kv_heads || basis->head_dim() != format.head_dim) {
    refuse("the basis is for " + std::to_string(basis->kv_heads()) + " kv heads of " +
           std::to_string(basis->head_dim()) + " channels, the layer has " + std::to_string(kv_heads) + " of " +
           std::to_string(format.head_dim));
  }
  format.model = basis.get();
  return basis;
}

void count_widths(const PageFormat& format, const uint8_t* head, int64_t* channels) {
  for (int c = 0; c < format.head_dim; ++c) {
    ++channels[spectral::width_of(spectral::class_of(head, format.head_dim, c))];
  }
}

// As many channels of each width as a multiple of eight, whose bits the side has room for.
bool valid(const PageFormat& format, const SideView&, const uint8_t* part, size_t) {
  const size_t head_bytes = spectral::layout_of(format).bytes;
  for (int head = 0; head < format.heads; ++head) {
    int channels[8] = {};
    for (int c = 0; c < format.head_dim; ++c)
      ++channels[spectral::class_of(part + head * head_bytes, format.head_dim, c)];
    int bits = 0;
    for (int of_class = 0; of_class < 8; ++of_class) {
      if (channels[of_class] % spectral::kTile != 0 || (of_class >= spectral::kClasses && channels[of_class] > 0)) {
        return false;
      }
      if (of_class < spectral::kClasses) bits += channels[of_class] * spectral::width_of(of_class);
    }
    if (bits > spectral::tile_bits(format) * spectral::kTile) return false;
  }
  return true;
}

constexpr Codec make_codec() {
  Codec codec = {"spectral",
                 "Spectral: rows in a basis where errors cost alike, channels of 0 to 8 bits by their spread",
                 1u << 1 | 1u << 2 | 1u << 3 | 1u << 4 | 1u << 8, kOptions, configure};
  codec.narrower = narrower;
  codec.attach = attach;
  codec.count_widths = count_widths;
  codec.valid = valid;
  return codec;
}

}  // namespace

extern const Codec spectral_codec;
const Codec spectral_codec = make_codec();

}  // namespace kvasir
