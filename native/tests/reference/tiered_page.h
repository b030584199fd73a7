// Codec tiered of docs/format.md: channels of 16, 4 or 2 bits, by what their error would do to the logits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "reference/half.h"
#include "reference/page.h"
#include "reference/uniform_page.h"

namespace reference {
namespace tiered {

using uniform::load16;
using uniform::store16;

inline double option(const Options& options, const char* name, double otherwise) {
  const auto found = options.find(name);
  return found == options.end() ? otherwise : found->second;
}
inline double option(const PageShape& s, const char* name, double otherwise) {
  return option(s.options, name, otherwise);
}

// The channels of each tier, ascending: 16, 4, 2 bits.
struct Tiers {
  std::vector<int> of[3];
  double mean_bits() const {
    const double bits = 16.0 * of[0].size() + 4.0 * of[1].size() + 2.0 * of[2].size();
    return bits / static_cast<double>(of[0].size() + of[1].size() + of[2].size());
  }
};

// Saliencies: [d]. queries: mean magnitudes, or null for ones.
inline std::vector<float> saliency(const PageShape& s, const float* rows, const float* queries) {
  std::vector<float> a;
  for (int c = 0; c < s.head_dim; ++c) {
    float low = rows[c], high = rows[c];
    for (int t = 1; t < kTokens; ++t) {
      low = std::min(low, rows[t * s.head_dim + c]);
      high = std::max(high, rows[t * s.head_dim + c]);
    }
    const float range = high - low;
    const float step = range / 3.0f;
    const float weight = queries == nullptr || option(s, "queries", 1) == 0 ? 1.0f : queries[c];
    a.push_back(weight * step);
  }
  return a;
}

// Channels by falling saliency, the first of equals first.
inline std::vector<int> ranking(const std::vector<float>& a) {
  std::vector<int> order(a.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int i, int j) { return a[i] > a[j]; });
  return order;
}

inline Tiers choose(const PageShape& s, const float* rows, const float* queries) {
  const std::vector<float> a = saliency(s, rows, queries);
  const int d = s.head_dim;
  const int mode = static_cast<int>(option(s, "mode", 0));
  std::vector<int> bits(d, 2);
  const auto count = [&](int width) { return static_cast<int>(std::count(bits.begin(), bits.end(), width)); };
  const auto cut = [&](double limit16, double limit4) {
    for (int c = 0; c < d; ++c) bits[c] = a[c] > limit16 ? 16 : a[c] > limit4 ? 4 : 2;
  };
  const auto sum = [&] { return static_cast<float>(std::accumulate(bits.begin(), bits.end(), 0)); };
  const std::vector<int> order = ranking(a);
  const auto best_of_2 = [&] { return *std::find_if(order.begin(), order.end(), [&](int c) { return bits[c] == 2; }); };
  if (mode == 2) {
    const float target = static_cast<float>(option(s, "key_bits", 2.7)) * static_cast<float>(d);
    // The least limit that keeps to the target is where a channel leaves a tier: at its A, or at the least float whose
    // product with 12 is at least A. From below, the first of these that fits.
    std::vector<float> limits = {0.0f};
    for (const float x : a) {
      limits.push_back(x);
      float twelfth = x / 12.0f;
      while (12.0f * twelfth >= x && twelfth > 0.0f) twelfth = std::nextafterf(twelfth, 0.0f);
      while (12.0f * twelfth < x) twelfth = std::nextafterf(twelfth, std::numeric_limits<float>::infinity());
      limits.push_back(twelfth);
    }
    std::sort(limits.begin(), limits.end());
    for (const float limit : limits) {
      cut(12.0f * limit, limit);
      if (sum() <= target) break;
    }
    while (count(2) > 0 && sum() + 2.0f <= target && a[best_of_2()] > 0.0f) bits[best_of_2()] = 4;
    if (count(2) == 0) {
      const auto best = std::find_if(order.begin(), order.end(), [&](int c) { return bits[c] == 4; });
      if (best != order.end() && sum() + 6.0f <= target) bits[*best] = 16;
    } else if (count(4) % 4 == 1) {
      // The least of the 4-bit channels, the first of equals.
      int least = -1;
      for (int c = 0; c < d; ++c) {
        if (bits[c] == 4 && (least < 0 || a[c] < a[least])) least = c;
      }
      bits[least] = 2;
    }
  } else {
    double unit = 1.0;
    if (mode == 0) unit = std::accumulate(a.begin(), a.end(), 0.0) / d;
    cut(static_cast<float>(option(s, "tau16", 1.44)) * unit, static_cast<float>(option(s, "tau4", 0.79)) * unit);
  }
  while (count(4) % 4 != 0 && count(2) > 0) bits[best_of_2()] = 4;
  Tiers tiers;
  for (int c = 0; c < d; ++c) tiers.of[bits[c] == 16 ? 0 : bits[c] == 4 ? 1 : 2].push_back(c);
  return tiers;
}

// Parameters of 8 bits. A range is the float16 with the byte's bits after its sign; lo is so many sixteenths of it, or
// the last finite float16 where that is beyond.
struct ByteParameters {
  int range = 0, lo = 0;  // 0..247, -128..127
  double range_value() const { return half_value(static_cast<uint16_t>(std::min(range, 247) << 7)); }
  double lo_value() const { return std::max(-65504.0, std::min(65504.0, lo * range_value() / 16)); }
};

// The least range that reaches the highest element from the greatest lo that is no more than the lowest; all are tried.
// The last range where none does.
inline ByteParameters byte_parameters(double low, double high) {
  ByteParameters found;
  for (found.range = 0;; ++found.range) {
    const double step = found.range_value() / 16;
    const double lo = step == 0 ? 0 : std::min(127.0, std::floor(low / step));
    found.lo = static_cast<int>(std::max(-129.0, lo));
    const bool covers = lo >= -128 && found.lo_value() <= low && found.lo_value() + found.range_value() >= high;
    if (covers || found.range == 247) return found;
  }
}

// A part's places, once its tiers are known.
struct Places {
  int d, group, parameter;  // bytes of lo or range
  size_t n16, n4, n2;

  static size_t padded(size_t n) { return (n + 3) / 4 * 4; }
  size_t columns() const { return padded(n4) + padded(n2); }
  size_t lo(size_t column, int token) const {
    return 4 + d + token / group * 2 * parameter * columns() + parameter * column;
  }
  size_t range(size_t column, int token) const { return lo(column, token) + parameter * columns(); }
  size_t values() const { return (4 + d + kTokens / group * 2 * parameter * columns() + 63) / 64 * 64; }
  size_t value(size_t i, int token) const { return values() + 256 * i + 2 * token; }
  size_t bytes() const { return values() + 256 * n16 + padded(n4) * 64 + padded(n2) * 32; }

  // For the i-th channel of the 4-bit tier (b = 4) or the 2-bit tier (b = 2).
  size_t column(int b, size_t i) const { return b == 4 ? i : padded(n4) + i; }
  struct Code {
    size_t byte;
    int shift;
  };
  Code code(int b, size_t i, int token) const {
    const size_t plane = values() + 256 * n16 + (b == 4 ? 0 : padded(n4) * 64);
    const size_t vectors = padded(b == 4 ? n4 : n2) / 4;
    const int tokens = 128 / b;
    const size_t vector = static_cast<size_t>(token / tokens) * vectors + i / 4;
    return {plane + 64 * vector + 4 * (token % 16) + i % 4, token % tokens / 16 * b};
  }
};

inline int parameter_size(const PageShape& s) { return option(s, "parameter_bits", 16) == 8 ? 1 : 2; }

inline Places places(const PageShape& s, const uint8_t* page) {
  const size_t n16 = load16(page), n4 = load16(page + 2);
  return {s.head_dim, s.group, parameter_size(s), n16, n4, s.head_dim - n16 - n4};
}

struct Parameters {
  float lo, range;
};
inline Parameters parameters(const Places& at, const uint8_t* page, size_t column, int token) {
  const uint8_t *lo = page + at.lo(column, token), *range = page + at.range(column, token);
  if (at.parameter == 2)
    return {static_cast<float>(half_value(load16(lo))), static_cast<float>(half_value(load16(range)))};
  const ByteParameters bytes{*range, static_cast<int8_t>(*lo)};
  return {static_cast<float>(bytes.lo_value()), static_cast<float>(bytes.range_value())};
}

inline PageContent decode(const PageShape& s, const uint8_t* page) {
  const Places at = places(s, page);
  const size_t size = static_cast<size_t>(kTokens) * s.head_dim;
  PageContent content;
  content.levels = 15;  // of the widest codes; steps are those of each channel's own width
  content.rows.resize(size);
  content.lo.resize(size);
  content.step.resize(size);
  for (int place = 0; place < s.head_dim; ++place) {
    const auto p = static_cast<size_t>(place);
    for (int t = 0; t < kTokens; ++t) {
      const size_t to = static_cast<size_t>(t) * s.head_dim + page[4 + p];
      if (p < at.n16) {
        content.rows[to] = content.lo[to] = static_cast<float>(half_value(load16(page + at.value(p, t))));
        continue;
      }
      const int b = p < at.n16 + at.n4 ? 4 : 2;
      const size_t i = b == 4 ? p - at.n16 : p - at.n16 - at.n4;
      const Places::Code where = at.code(b, i, t);
      const int code = page[where.byte] >> where.shift & ((1 << b) - 1);
      const auto [lo, range] = parameters(at, page, at.column(b, i), t);
      const bool cells = b == 2 && s.cells;
      content.step[to] = range / static_cast<float>((1 << b) - (cells ? 0 : 1));
      const float half_cell = cells ? content.step[to] / 2.0f : 0.0f;
      content.lo[to] = lo + half_cell;
      const float scaled = static_cast<float>(code) * content.step[to];
      content.rows[to] = content.lo[to] + scaled;
    }
  }
  return content;
}

// Parameters of 8 bits and codes of the i-th channel of a tier.
inline void encode_bytes(const PageShape& s, const Places& at, int b, size_t i, const float* channel, uint8_t* page) {
  const bool cells = b == 2 && s.cells;
  const int last = (1 << b) - 1;
  for (int first = 0; first < kTokens; first += s.group) {
    const auto [low, high] = std::minmax_element(channel + first, channel + first + s.group);
    const ByteParameters stored = byte_parameters(*low, *high);
    const auto lo = static_cast<float>(stored.lo_value()), range = static_cast<float>(stored.range_value());
    page[at.lo(at.column(b, i), first)] = static_cast<uint8_t>(stored.lo);
    page[at.range(at.column(b, i), first)] = static_cast<uint8_t>(stored.range);
    const float inverse = range > 0 ? static_cast<float>(cells ? last + 1 : last) / range : 0.0f;
    for (int t = first; t < first + s.group; ++t) {
      const float offset = channel[t] - lo;
      const float quotient = offset * inverse;
      const int code = std::min(last, static_cast<int>(cells ? std::floor(quotient) : std::nearbyint(quotient)));
      const Places::Code where = at.code(b, i, t);
      page[where.byte] = static_cast<uint8_t>(page[where.byte] | code << where.shift);
    }
  }
}

// The part of these rows once tiers are chosen: the format leaves no other choice.
inline std::vector<uint8_t> encode(const PageShape& s, const float* rows, const Tiers& tiers) {
  const Places at = {s.head_dim,         s.group,           parameter_size(s), tiers.of[0].size(),
                     tiers.of[1].size(), tiers.of[2].size()};
  std::vector<uint8_t> page(at.bytes(), 0);
  store16(page.data(), static_cast<uint16_t>(at.n16));
  store16(page.data() + 2, static_cast<uint16_t>(at.n4));
  size_t place = 4;
  for (const auto& tier : tiers.of) {
    for (const int c : tier) page[place++] = static_cast<uint8_t>(c);
  }
  for (size_t i = 0; i < at.n16; ++i) {
    for (int t = 0; t < kTokens; ++t) {
      store16(page.data() + at.value(i, t), half_nearest(rows[t * s.head_dim + tiers.of[0][i]]));
    }
  }
  for (const int b : {4, 2}) {
    const std::vector<int>& tier = tiers.of[b == 4 ? 1 : 2];
    // Parameters and codes are those of a uniform page that has the tier's channels only.
    PageShape one{Side::kKeys, 1, b, 0, s.group, b == 2 && s.cells};
    for (size_t i = 0; i < tier.size(); ++i) {
      std::vector<float> channel;
      for (int t = 0; t < kTokens; ++t) channel.push_back(rows[t * s.head_dim + tier[i]]);
      if (at.parameter == 1) {
        encode_bytes(s, at, b, i, channel.data(), page.data());
        continue;
      }
      const std::vector<uint8_t> coded = uniform::encode(one, channel.data());
      for (int t = 0; t < kTokens; ++t) {
        const uint8_t* parameters = coded.data() + uniform::lo_offset(one, t, 0);
        std::copy_n(parameters, 2, page.data() + at.lo(at.column(b, i), t));
        std::copy_n(parameters + 2 * uniform::entries(one), 2, page.data() + at.range(at.column(b, i), t));
        const Places::Code where = at.code(b, i, t);
        page[where.byte] =
            static_cast<uint8_t>(page[where.byte] | uniform::load_code(one, coded.data(), t, 0) << where.shift);
      }
    }
  }
  return page;
}

// Where no queries were seen.
inline std::vector<uint8_t> encode(const PageShape& s, const float* rows) {
  return encode(s, rows, choose(s, rows, nullptr));
}

inline PageShape shape(Side side, int bits, int head_dim, const Options& options) {
  PageShape s{side, head_dim, bits, 0, 32, option(options, "grid", 1) == 1};
  s.options = options;
  const auto group = options.find("group");
  if (group != options.end()) s.group = static_cast<int>(group->second);
  return s;
}

// Parameters of 8 bits on both grids, in groups of two sizes.
inline std::vector<Options> byte_variants() {
  return {{{"mode", 2.0}, {"key_bits", 2.7}, {"parameter_bits", 8.0}},
          {{"tau16", 1e30}, {"tau4", 0.9}, {"group", 64.0}, {"grid", 0.0}, {"parameter_bits", 8.0}}};
}

// Every mode and group; thresholds that put all channels into one tier, and such that a tier is missing. Parameters are
// float16.
inline std::vector<Options> half_variants() {
  return {{},
          {{"tau16", 1.05}, {"tau4", 0.98}, {"group", 64.0}},
          {{"mode", 1.0}, {"tau16", 5.0}, {"tau4", 1.5}, {"queries", 0.0}, {"group", 128.0}},
          {{"mode", 1.0}, {"tau16", 0.0}, {"tau4", 0.0}},
          {{"mode", 1.0}, {"tau16", 1e30}, {"tau4", 1e30}},
          {{"mode", 1.0}, {"tau16", 1e30}, {"tau4", 1e30}, {"grid", 0.0}},
          {{"grid", 0.0}, {"group", 64.0}},
          {{"tau16", 1.1}, {"tau4", 1.6}},
          {{"mode", 2.0}, {"key_bits", 2.7}},
          {{"mode", 2.0}, {"key_bits", 6.5}, {"group", 64.0}}};
}

inline std::vector<Options> variants(Side side, int) {
  if (side == Side::kValues) return {};
  std::vector<Options> all = half_variants();
  for (const Options& options : byte_variants()) all.push_back(options);
  return all;
}

}  // namespace tiered

inline ReferenceCodec tiered_reference() {
  return {{"mode", "tau16", "tau4", "key_bits", "queries", "grid", "group", "parameter_bits"},
          tiered::variants,
          tiered::shape,
          tiered::decode,
          tiered::encode};
}

}  // namespace reference
