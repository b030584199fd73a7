#include "codecs/codec.h"

#include <algorithm>
#include <string>

#include "base/checks.h"
#include "codecs/tiered/formula.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

// The thresholds that the paper found for R1-Distill-Llama-8B.
constexpr double kDefaultTau16 = 1.44;
constexpr double kDefaultTau4 = 0.79;
constexpr double kDefaultKeyBits = 2.7;

constexpr CodecOption kOptions[] = {
    {"mode", "0: thresholds on saliency over its mean (default); 1: on saliency itself; 2: by key_bits"},
    {"tau16", "channels above it keep 16 bits; 0 or more, default 1.44"},
    {"tau4", "channels above it, if not above tau16, have 4 bits; 0 or more, default 0.79"},
    {"key_bits", "mode 2: bits of a channel, on average over a page's, to aim at; 2..16, default 2.7"},
    {"queries", "1: saliency weighs a channel's error by its queries (default); 0: the error alone"},
    {"grid", "of 2-bit codes, 0: levels from the least to the greatest element; 1: cells (default)"},
    {"group", "tokens that share parameters: 32 (default), 64 or 128"},
    {"parameter_bits", "of lo and of range: 16 (default), or 8, which cost a tenth of the range or so"},
    {nullptr, nullptr},
};

[[noreturn]] void refuse(const std::string& text) { throw Error(ErrorCode::kInvalidArgument, "codec tiered: " + text); }

float threshold(const CodecOptions& options, const char* name, double otherwise) {
  const double tau = option_of(options, name, otherwise);
  if (!(tau >= 0 && tau <= 1e30)) refuse(std::string(name) + " must be 0 or more, not " + float_text(tau));
  return static_cast<float>(tau);
}

PageFormat configure(Side side, int bits, int head_dim, const CodecOptions& options) {
  PageFormat format;
  format.side = side;
  format.bits = bits;
  format.head_dim = head_dim;
  format.axis = Axis::kChannel;

  const double group = option_of(options, "group", 32);
  if (group != 32 && group != 64 && group != 128) {
    refuse("group must be 32, 64 or 128, not " + float_text(group));
  }
  const double grid = option_of(options, "grid", 1);
  if (grid != 0 && grid != 1) refuse("grid must be 0 or 1, not " + float_text(grid));
  const double mode = option_of(options, "mode", tiered::kNormalised);
  if (mode != tiered::kNormalised && mode != tiered::kAbsolute && mode != tiered::kBudget) {
    refuse("mode must be 0, 1 or 2, not " + float_text(mode));
  }
  const double key_bits = option_of(options, "key_bits", kDefaultKeyBits);
  if (!(key_bits >= 2 && key_bits <= 16)) refuse("key_bits must be 2..16, not " + float_text(key_bits));
  const double queries = option_of(options, "queries", 1);
  if (queries != 0 && queries != 1) refuse("queries must be 0 or 1, not " + float_text(queries));

  const double parameter_bits = option_of(options, "parameter_bits", 16);
  if (parameter_bits != 16 && parameter_bits != 8) {
    refuse("parameter_bits must be 16 or 8, not " + float_text(parameter_bits));
  }

  format.group = static_cast<int>(group);
  format.grid = static_cast<Grid>(grid);
  format.numbers[tiered::kMode] = static_cast<float>(mode);
  format.numbers[tiered::kTau16] = threshold(options, "tau16", kDefaultTau16);
  format.numbers[tiered::kTau4] = threshold(options, "tau4", kDefaultTau4);
  format.numbers[tiered::kKeyBits] = static_cast<float>(key_bits);
  format.numbers[tiered::kQueries] = static_cast<float>(queries);
  format.numbers[tiered::kParameterBits] = parameter_bits == 8 ? 8.0f : 0.0f;
  format.head_bytes = tiered::head_bytes(format);
  return format;
}

static_assert(tiered::kCountBytes <= kWidthBytes, "what count_widths may look at");

void count_widths(const PageFormat& format, const uint8_t* part, int64_t* channels) {
  const tiered::Layout layout = tiered::layout_of(format, part);
  channels[16] += layout.n16;
  channels[4] += layout.n4;
  channels[2] += layout.n2;
}

bool valid(const PageFormat& format, const SideView&, const uint8_t* part, size_t bytes) {
  const auto d = static_cast<size_t>(format.head_dim);
  if (bytes < tiered::kCountBytes + d) return false;
  const int n16 = part[0] | part[1] << 8, n4 = part[2] | part[3] << 8;
  if (n16 + n4 > format.head_dim || (n4 % tiered::kColumnsPerVector != 0 && n16 + n4 < format.head_dim)) return false;
  if (tiered::layout_of(format, n16, n4).bytes != bytes) return false;
  // Every channel once, ascending in each tier.
  const uint8_t* channels = tiered::channels_of(part);
  bool seen[kMaxHeadDim] = {};
  for (size_t i = 0; i < d; ++i) {
    const bool begins = i == 0 || i == static_cast<size_t>(n16) || i == static_cast<size_t>(n16 + n4);
    if (channels[i] >= d || seen[channels[i]] || (!begins && channels[i] < channels[i - 1])) return false;
    seen[channels[i]] = true;
  }
  return true;
}

// Over all numbers of channels that choose_tiers may give the two wider tiers.
Codec::PartRange part_range(const PageFormat& format) {
  const int d = format.head_dim;
  const double rounding = 1.0 + 1e-5;  // of sums and products in float32
  const auto possible = [&](int n16, int n4) {
    if (n4 % tiered::kColumnsPerVector != 0 && n16 + n4 < d) return false;
    // Up to so many channels were put among the 4-bit ones to fill a vector.
    const auto before = [&](int added) { return n4 > added ? n4 - added : 0; };
    const int chosen = before(tiered::kColumnsPerVector - 1);
    if (tiered::mode_of(format) == tiered::kBudget) {
      const float target = format.numbers[tiered::kKeyBits] * static_cast<float>(d);
      // Where no channel has 2 bits, one step of 12 bits may go to the nearest. Elsewhere no channel is alone in a
      // vector.
      if (n16 + n4 == d) return static_cast<float>(tiered::code_bits(d, n16, chosen)) <= target + 6.0f;
      return static_cast<float>(tiered::code_bits(d, n16, before(tiered::kColumnsPerVector - 2))) <= target;
    }
    // No more channels can pass a share of the mean than their sum allows.
    const double share = n16 * static_cast<double>(format.numbers[tiered::kTau16]) +
                         chosen * static_cast<double>(format.numbers[tiered::kTau4]);
    return tiered::mode_of(format) == tiered::kAbsolute || share <= d * rounding;
  };
  Codec::PartRange range = {SIZE_MAX, 0};
  for (int n16 = 0; n16 <= d; ++n16) {
    for (int n4 = 0; n16 + n4 <= d; ++n4) {
      if (!possible(n16, n4)) continue;
      const size_t bytes = tiered::layout_of(format, n16, n4).bytes;
      range.least = std::min(range.least, bytes);
      range.most = std::max(range.most, bytes);
    }
  }
  return range;
}

constexpr Codec make_codec() {
  Codec codec = {"tiered", "MixKVQ: key channels of 16, 4 or 2 bits, by what their error would do to the logits",
                 1u << 2, kOptions, configure};
  codec.sides = 1u << static_cast<int>(Side::kKeys);
  codec.wants_queries = tiered::goes_by_queries;
  codec.count_widths = count_widths;
  codec.part_range = part_range;
  codec.valid = valid;
  return codec;
}

}  // namespace

extern const Codec tiered_codec;
constexpr Codec tiered_codec = make_codec();

}  // namespace kvasir
