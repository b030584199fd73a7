// The uniform codec. Attention on its pages is one kernel for keys and values, because both contract a code matrix
// along x:
//
//   out[y] = sum over x of in[x] * (base + (code(x, y) - origin) * step),   base = lo + origin * step
//
// Parameters belong to x ("folded": in[x] * step is what becomes bytes, and in[x] * base sums to one number per row) or
// to y (they scale the result). Any origin would do; the rounding errors of the bytes are multiplied with code -
// origin, so it is the code of 0 where the group has one, and otherwise the middle: errors stay small beside what they
// are in.
#include "codecs/uniform/format.h"
#include "codecs/uniform/formula.h"
#include "kernels/cpu/byte_rows.h"
#include "kernels/cpu/code_dots.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/uniform_pack.h"

namespace kvasir::KVASIR_LEVEL {
namespace {

using uniform::Layout;

// What one group of a page's parameters means for attention, by entry.
struct GroupScales {
  alignas(64) float step[kMaxSize];
  alignas(64) float base[kMaxSize];
  alignas(64) float origin[kMaxSize + kGroupLanes];  // in codes as dot products see them, less their bias
};

// The part of the code matrix that one group of parameters covers.
struct Region {
  int x_begin, x_end;
  int y_begin, y_end;
};

// A digit of the codes: 16-bit codes have two of 8 bits, others are one.
struct Digit {
  CodeMatrix matrix;
  int bits;
  float weight;
};

Region region_of(const Layout& layout, int g) {
  const int begin = g * layout.group;
  const int size = layout.folded ? layout.y_size : layout.x_size;
  const int end = begin + layout.group < size ? begin + layout.group : size;
  return layout.folded ? Region{0, layout.x_size, begin, end} : Region{begin, end, 0, layout.y_size};
}

int digits_of(const Layout& layout, const uint8_t* page, int bits, Digit (&digits)[2]) {
  const auto stride = [&](int plane) { return static_cast<size_t>(layout.planes[plane].vectors_per_row()) * 64; };
  const uint8_t* planes[2] = {page + layout.plane_offset[0], page + layout.plane_offset[layout.plane_count - 1]};
  if (bits == 16) {
    digits[0] = {{planes[0], stride(0), nullptr, 0}, 8, 1.0f};
    digits[1] = {{planes[1], stride(1), nullptr, 0}, 8, 256.0f};
    return 2;
  }
  digits[0] = {{planes[0], stride(0), planes[1], stride(layout.plane_count - 1)}, bits, 1.0f};
  return 1;
}

// What dot products leave out of a code, over both digits where there are two.
float bias_of(int bits) { return static_cast<float>(bits == 16 ? 257 * kByteBias : bits == 8 ? kByteBias : 0); }

void load_scales(const PageFormat& format, const Layout& layout, const uint8_t* page, int g, GroupScales& scales) {
  const uint16_t* stored_lo = reinterpret_cast<const uint16_t*>(page + layout.lo_offset(g));
  const uint16_t* stored_range = reinterpret_cast<const uint16_t*>(page + layout.range_offset(g));
  const uniform::Codes codes = uniform::codes_of(format.bits, format.grid);
  const F32 zero = splat(0.0f), middle = splat(0.5f * static_cast<float>(codes.last));
  for (int e = 0; e < layout.entries; e += kLanes) {
    const F32 range = load_half(stored_range + e);
    const F32 step = range * splat(1.0f / codes.steps);
    const F32 lo = fma(splat(codes.centre), step, load_half(stored_lo + e));
    // Of code 0, whatever the grid. An estimate is enough: the base below is that of whatever origin comes out.
    const F32 code_of_zero = (zero - lo) * reciprocal_estimate(step);
    const F32 above_zero = lo + range > zero ? code_of_zero : middle;
    const F32 origin = lo < zero ? above_zero : middle;
    store(scales.step + e, step);
    store(scales.base + e, fma(origin, step, lo));
    store(scales.origin + e, origin - splat(bias_of(format.bits)));
  }
  for (int e = layout.entries; e % kGroupLanes != 0; e += kLanes) store(scales.origin + e, zero);
}

// Makes bytes of rows first.. of the input, as many as fit.
template <bool kFolded>
void fill_block(const TileInput& input, int first, const Region& region, const GroupScales& scales, RowBlock& block) {
  const int size = region.x_end - region.x_begin;
  alignas(64) float values[kMaxSize + kGroupLanes];
  for (int x = size; x % kGroupLanes != 0; x += kLanes) store(values + x, splat(0.0f));
  block.rows = 0;
  block.byte_rows = 0;
  for (int r = first; r < input.count; ++r) {
    const float* in = input.rows + static_cast<size_t>(r) * input.stride + region.x_begin;
    F32 peak = splat(0.0f), energy = splat(0.0f), offset = splat(0.0f);
    for (int x = 0; x < size; x += kLanes) {
      F32 value = load(in + x);
      if constexpr (kFolded) {
        offset = fma(value, load(scales.base + x), offset);
        value = value * load(scales.step + x);
      } else {
        offset = offset + value;
      }
      peak = max(peak, abs(value));
      energy = fma(value, value, energy);
      store(values + x, value);
    }
    const float* origins = kFolded ? scales.origin : nullptr;
    if (!block.add(values, region.x_begin, size, {peak, energy}, input.fast, origins, sum(offset))) return;
  }
}

// out[row][y] += what the totals of one digit say of it; the first one also brings what does not depend on codes.
template <bool kFolded>
void add_totals(const RowBlock& block, float weight, bool first_digit, const int32_t* totals, const Region& region,
                const GroupScales& scales, float* out, int out_stride) {
  for (int r = 0; r < block.rows; ++r) {
    const RowBlock::Row& row = block.row[r];
    const int32_t* high = totals + row.byte_row * kMaxSize;
    const int32_t* low = high + kMaxSize;
    const F32 scale = splat(row.scale * weight);
    const F32 sum = splat(first_digit ? -row.sum * row.scale : 0.0f);
    const F32 offset = splat(first_digit ? row.offset : 0.0f);
    float* to = out + static_cast<size_t>(r) * out_stride;
    for (int y = region.y_begin; y < region.y_end; y += kLanes) {
      const F32 total = to_float(row.split ? SplitBytes::join(load(high + y), load(low + y)) : load(high + y));
      F32 result;
      if constexpr (kFolded) {
        result = fma(total, scale, sum + offset);
      } else {
        const F32 product = fma(total, scale, sum * load(scales.origin + y));
        result = fma(product, load(scales.step + y), offset * load(scales.base + y));
      }
      store(to + y, load(to + y) + result);
    }
  }
}

// Rows of the input that share one scale over all groups of a folded page, so that a group costs one pass.
struct SharedRows {
  int rows;
  float scale[kMaxByteRows / 2];
  alignas(64) float scaled[kMaxByteRows / 2][kMaxSize];  // times a step, what becomes bytes
};

void share_scales(const TileInput& input, int first, const Layout& layout, const GroupScales* groups,
                  SharedRows& shared) {
  shared.rows = input.count - first < kMaxByteRows / 2 ? input.count - first : kMaxByteRows / 2;
  for (int r = 0; r < shared.rows; ++r) {
    const float* in = input.rows + static_cast<size_t>(first + r) * input.stride;
    F32 peaks = splat(0.0f);
    for (int x = 0; x < layout.x_size; x += kLanes) {
      F32 step = load(groups[0].step + x);
      for (int g = 1; g < layout.groups; ++g) step = max(step, load(groups[g].step + x));
      peaks = max(peaks, abs(load(in + x) * step));
    }
    const float peak = highest(peaks) > kSmallestPeak ? highest(peaks) : kSmallestPeak;
    shared.scale[r] = peak * (1.0f / kSplitLimit);
    const F32 inverse = splat(kSplitLimit / peak), most = splat(3e38f);
    for (int x = 0; x < layout.x_size; x += kLanes) {
      // Only where all steps are 0 can it be beyond that; finite, its products are 0.
      store(shared.scaled[r] + x, max(min(load(in + x) * inverse, most), -most));
    }
  }
}

void fill_shared(const TileInput& input, int first, int x_size, const GroupScales& scales, const SharedRows& shared,
                 RowBlock& block) {
  block.rows = shared.rows;
  block.byte_rows = 2 * shared.rows;
  for (int r = 0; r < shared.rows; ++r) {
    const float* in = input.rows + static_cast<size_t>(first + r) * input.stride;
    int8_t* high = block.bytes + 2 * r * kMaxSize;
    F32 offset = splat(0.0f), origins = splat(0.0f);
    for (int x = 0; x < x_size; x += kGroupLanes) {
      SplitBytes bytes;
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const int at = x + i * kLanes;
        if (at >= x_size) break;
        const I32 t = round(load(shared.scaled[r] + at) * load(scales.step + at));
        offset = fma(load(in + at), load(scales.base + at), offset);
        origins = fma(to_float(t), load(scales.origin + at), origins);
        bytes.put(i, t);
      }
      bytes.write(high + x, high + kMaxSize + x);
    }
    block.row[r] = {2 * r, true, shared.scale[r], sum(origins), sum(offset)};
  }
}

// As below, for folded pages with several groups, exactly.
void add_product_shared(const PageFormat& format, const Layout& layout, const uint8_t* page, const TileInput& input,
                        float* out) {
  Digit digits[2];
  const int digit_count = digits_of(layout, page, format.bits, digits);
  GroupScales scales[kMaxSize / 32];
  for (int g = 0; g < layout.groups; ++g) load_scales(format, layout, page, g, scales[g]);
  SharedRows shared;
  RowBlock block;
  alignas(64) int32_t totals[kMaxByteRows * kMaxSize];
  for (int first = 0; first < input.count; first += shared.rows) {
    share_scales(input, first, layout, scales, shared);
    float* rows = out + static_cast<size_t>(first) * layout.y_size;
    for (int g = 0; g < layout.groups; ++g) {
      const Region region = region_of(layout, g);
      fill_shared(input, first, layout.x_size, scales[g], shared, block);
      block.arrange(0, layout.x_size);
      for (int i = 0; i < digit_count; ++i) {
        multiply_for(digits[i].bits, block.byte_rows)(digits[i].matrix, region.y_begin, region.y_end, 0,
                                                      layout.x_size / kUnit, block.bytes, totals);
        add_totals<true>(block, digits[i].weight, i == 0, totals, region, scales[g], rows, layout.y_size);
      }
    }
  }
}

// out[row][y] += sum over x of in[row][x] * element(x, y)
template <bool kFolded>
void add_product(const PageFormat& format, const Layout& layout, const uint8_t* page, const TileInput& input,
                 float* out) {
  Digit digits[2];
  const int digit_count = digits_of(layout, page, format.bits, digits);
  GroupScales scales;
  RowBlock block;
  alignas(64) int32_t totals[kMaxByteRows * kMaxSize];
  for (int g = 0; g < layout.groups; ++g) {
    load_scales(format, layout, page, g, scales);
    const Region region = region_of(layout, g);
    for (int first = 0; first < input.count; first += block.rows) {
      fill_block<kFolded>(input, first, region, scales, block);
      block.arrange(region.x_begin, region.x_end);
      float* rows = out + static_cast<size_t>(first) * layout.y_size;
      for (int i = 0; i < digit_count; ++i) {
        multiply_for(digits[i].bits, block.byte_rows)(digits[i].matrix, region.y_begin, region.y_end,
                                                      region.x_begin / kUnit, region.x_end / kUnit, block.bytes,
                                                      totals);
        add_totals<kFolded>(block, digits[i].weight, i == 0, totals, region, scales, rows, layout.y_size);
      }
    }
  }
}

void add_product(const PageFormat& format, const uint8_t* page, const TileInput& input, float* out) {
  const Layout layout = uniform::layout_of(format);
  TileInput rows = input;
  // The softmax turns an absolute error of a score into a relative one of its weight, so 8 bits of a query are too few
  // as soon as scores are large. An error of a weight stays what it is.
  if (format.side == Side::kKeys) rows.fast = false;
  if (layout.folded && layout.groups > 1 && !rows.fast) return add_product_shared(format, layout, page, rows, out);
  (layout.folded ? add_product<true> : add_product<false>)(format, layout, page, rows, out);
}

void key_scores(const PageFormat& format, const uint8_t* page, const TileInput& queries, float* scores) {
  memset(scores, 0, sizeof(float) * kPageTokens * queries.count);
  add_product(format, page, queries, scores);
}

void value_sum(const PageFormat& format, const uint8_t* page, const TileInput& weights, float* outputs) {
  add_product(format, page, weights, outputs);
}

}  // namespace

const CodecKernels uniform_kernels = {uniform_encode, uniform_decode, key_scores, value_sum};

}  // namespace kvasir::KVASIR_LEVEL
