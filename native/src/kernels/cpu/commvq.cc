// The commvq codec.
//
// Keys: 2 * stages rows of whole numbers are added up for each token, 16 RoPE pairs at a time, in registers and from
// tables that stay in the first cache; a few tokens at a time are then turned by their offsets in the page and
// multiplied with all queries. Values: one-bit codes, contracted with the weights as bytes like those of the uniform
// codec, for all rows of the codebook; the codebook comes last, once.
#include "base/half.h"
#include "codecs/commvq/model.h"
#include "kernels/commvq_inl.h"
#include "kernels/cpu/byte_rows.h"
#include "kernels/cpu/code_dots.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"

namespace kvasir::KVASIR_LEVEL {
namespace {

using commvq::FixedTables;

constexpr int kPairs = FixedTables::kPairs;
constexpr int kTogether = 4;  // tokens whose keys stay in registers

// The codes of one kv head of a page, as offsets of their rows in a stage's table.
struct KeyCodes {
  alignas(64) uint16_t a[commvq::kMaxStages][kPageTokens];
  alignas(64) uint16_t b[commvq::kMaxStages][kPageTokens];

  KeyCodes(const commvq::KeyPage& layout, const uint8_t* page, int kv_head) {
    const uint8_t* packed = page + layout.head_offset(kv_head);
    layout.index_bits == 6   ? unpack<6>(layout, packed)
    : layout.index_bits == 5 ? unpack<5>(layout, packed)
                             : unpack<4>(layout, packed);
  }

 private:
  template <int kIndexBits>
  void unpack(const commvq::KeyPage& layout, const uint8_t* packed) {
    constexpr int kCodeBits = 2 * kIndexBits, kBytes = kPageTokens * kCodeBits / 8;
    constexpr uint16_t kMask = (1 << kIndexBits) - 1;
    constexpr int kRowShift = 5;
    static_assert(2 * kPairs == 1 << kRowShift, "rows of the tables");
    uint8_t room[kBytes + 16];  // reading may go beyond the codes, but not beyond the page
    for (int s = 0; s < layout.stages; ++s, packed += kBytes) {
      memcpy(room, packed, kBytes);
      for (int t = 0; t < kPageTokens; t += 2 * kLanes) {
        const U16 code = numbers<kCodeBits>(room + t * kCodeBits / 8);
        store(&a[s][t], (code & kMask) << kRowShift);
        store(&b[s][t], (code >> kIndexBits) << kRowShift);
      }
    }
  }
};

// Queries in the order of the tables' chunks, times the units, padded with 0: [rows][chunks][re, im][kPairs].
struct ScaledQueries {
  alignas(64) float rows[kMaxTileRows * (kMaxHeadDim + 2 * kPairs)];
  int stride;

  ScaledQueries(const commvq::KeyModel& model, const TileInput& queries) {
    const int half = model.head_dim / 2, padded = model.fixed.chunks * kPairs;
    const float* units = model.fixed.units + static_cast<size_t>(queries.head) * padded;
    stride = 2 * padded;
    for (int r = 0; r < queries.count; ++r) {
      const float* query = queries.rows + static_cast<size_t>(r) * queries.stride;
      for (int j = 0; j < half; j += kLanes) {
        const int held = half - j;
        const F32 unit = load(units + j);
        const F32 re = held >= kLanes ? load(query + j) : load_some(query + j, held);
        const F32 im = held >= kLanes ? load(query + half + j) : load_some(query + half + j, held);
        float* out = rows + r * stride + j / kPairs * 2 * kPairs + j % kPairs;
        store(out, re * unit);
        store(out + kPairs, im * unit);
      }
    }
  }
};

// Keys of kTogether tokens, kLanes pairs of each, in units.
struct KeyBlock {
  F32 re[kTogether], im[kTogether];
};

// Before RoPE. rows: these pairs in the first row of the first stage.
inline KeyBlock add_up(const int16_t* rows, const KeyCodes& codes, int stages, int run, size_t stage_size, int t) {
  I32 re[kTogether], im[kTogether];  // in registers, because every loop is unrolled
#pragma GCC unroll 4
  for (int i = 0; i < kTogether; ++i) re[i] = im[i] = splat(0);
  for (int first = 0; first < stages; first += run) {
    const int end = first + run < stages ? first + run : stages;
    I16 a[kTogether], b[kTogether];
#pragma GCC unroll 4
    for (int i = 0; i < kTogether; ++i) a[i] = b[i] = I16{};
    for (int s = first; s < end; ++s, rows += stage_size) {
#pragma GCC unroll 4
      for (int i = 0; i < kTogether; ++i) {
        a[i] += load(rows + codes.a[s][t + i]);
        b[i] += load(rows + codes.b[s][t + i]);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kTogether; ++i) {
      // a + i b
      re[i] = subtract_second(add_first(re[i], a[i]), b[i]);
      im[i] = add_first(add_second(im[i], a[i]), b[i]);
    }
  }
  KeyBlock keys;
#pragma GCC unroll 4
  for (int i = 0; i < kTogether; ++i) {
    keys.re[i] = to_float(re[i]);
    keys.im[i] = to_float(im[i]);
  }
  return keys;
}

// cosines: those of the block's first token and pair; `held` of the kLanes pairs are there.
inline void turn(const float* cosines, int half, int held, KeyBlock& keys) {
#pragma GCC unroll 4
  for (int i = 0; i < kTogether; ++i) {
    const float* sines = cosines + half;
    const F32 c = held >= kLanes ? load(cosines) : load_some(cosines, held);
    const F32 s = held >= kLanes ? load(sines) : load_some(sines, held);
    const F32 re = keys.re[i], im = keys.im[i];
    keys.re[i] = fma(re, c, -(im * s));
    keys.im[i] = fma(re, s, im * c);
    cosines += 2 * half;
  }
}

void key_scores(const PageFormat& format, const uint8_t* page, const TileInput& queries, float* scores) {
  const commvq::KeyModel& model = commvq::keys_of(format);
  const int d = format.head_dim, half = d / 2;
  const KeyCodes codes(model.page, page, queries.head);
  const ScaledQueries scaled(model, queries);
  // By row and block of tokens, as sums_by_fours has them.
  alignas(64) float sums[kMaxTileRows][kPageTokens / kTogether * kLanes];
  const size_t stage_size = static_cast<size_t>(model.entries) * 2 * kPairs;
  for (int first = 0; first < half; first += kLanes) {
    const int chunk = first / kPairs, inside = first % kPairs;
    const int16_t* rows = model.fixed_rows(queries.head, chunk) + 2 * inside;
    const float* chunk_queries = scaled.rows + chunk * 2 * kPairs + inside;
    for (int t = 0; t < kPageTokens; t += kTogether) {
      KeyBlock keys = add_up(rows, codes, model.page.stages, model.fixed.run, stage_size, t);
      turn(queries.turns + static_cast<size_t>(t) * d + first, half, half - first, keys);
      for (int r = 0; r < queries.count; ++r) {
        const float* query = chunk_queries + r * scaled.stride;
        const F32 re = load(query), im = load(query + kPairs);
        F32 products[kTogether];
#pragma GCC unroll 4
        for (int i = 0; i < kTogether; ++i) products[i] = fma(re, keys.re[i], im * keys.im[i]);
        const F32 fours = sums_by_fours(products[0], products[1], products[2], products[3]);
        float* sum = sums[r] + t / kTogether * kLanes;
        store(sum, first == 0 ? fours : load(sum) + fours);
      }
    }
  }
  const auto* norms = reinterpret_cast<const uint16_t*>(page);
  for (int r = 0; r < queries.count; ++r) {
    float* row = scores + r * kPageTokens;
    for (int i = 0; i < kPageTokens / kTogether; ++i) store_fours(row + i * kTogether, load(sums[r] + i * kLanes));
    for (int t = 0; t < kPageTokens; t += kLanes) store(row + t, load(row + t) * load_half(norms + t));
  }
}

// Rows of the codebook that one pass takes: totals have room for kMaxSize.
void value_sum(const PageFormat& format, const uint8_t* page, const TileInput& weights, float*) {
  const commvq::ValuePage layout = commvq::values_of(format).page;
  const CodePlane plane = layout.plane();
  const size_t stride = static_cast<size_t>(plane.vectors_per_row()) * CodePlane::kVectorBytes;
  const auto* stored = reinterpret_cast<const uint16_t*>(page);
  alignas(64) float gains[kPageTokens];
  for (int t = 0; t < kPageTokens; t += kLanes) store(gains + t, load_half(stored + t));
  alignas(64) int32_t totals[kMaxByteRows * kMaxSize];
  RowBlock block;
  for (int first = 0; first < weights.count; first += block.rows) {
    block.rows = 0;
    block.byte_rows = 0;
    for (int r = first; r < weights.count; ++r) {
      alignas(64) float values[kPageTokens + kGroupLanes];
      const float* row = weights.rows + static_cast<size_t>(r) * weights.stride;
      F32 peak = splat(0.0f), energy = splat(0.0f);
      for (int t = 0; t < kPageTokens; t += kLanes) {
        const F32 value = load(row + t) * load(gains + t);
        peak = max(peak, abs(value));
        energy = fma(value, value, energy);
        store(values + t, value);
      }
      if (!block.add(values, 0, kPageTokens, {peak, energy}, weights.fast, nullptr, 0.0f)) break;
    }
    block.arrange(0, kPageTokens);
    for (int y = 0; y < layout.codes; y += kMaxSize) {
      const int count = layout.codes - y < kMaxSize ? layout.codes - y : kMaxSize;
      const uint8_t* codes = page + commvq::kScaleBytes + static_cast<size_t>(y / CodePlane::kLanes) * stride;
      multiply_for(1, block.byte_rows)({codes, stride, codes, stride}, 0, count, 0, kPageTokens / kUnit, block.bytes,
                                       totals);
      for (int r = 0; r < block.rows; ++r) {
        const RowBlock::Row& row = block.row[r];
        const int32_t* high = totals + row.byte_row * kMaxSize;
        const int32_t* low = high + kMaxSize;
        float* sums = weights.sums + static_cast<size_t>(first + r) * weights.entries + y;
        for (int n = 0; n < count; n += kLanes) {
          const F32 total = to_float(row.split ? SplitBytes::join(load(high + n), load(low + n)) : load(high + n));
          store(sums + n, fma(total, splat(row.scale), load(sums + n)));
        }
      }
    }
  }
}

constexpr int kSumRows = 4;

void end_values(const PageFormat& format, const SideView&, const TileInput& weights, float* outputs) {
  const commvq::ValueModel& model = commvq::values_of(format);
  const int d = format.head_dim;
  for (int r = 0; r < weights.count; r += kSumRows) {
    const int rows = weights.count - r < kSumRows ? weights.count - r : kSumRows;
    // Rows that are not there repeat the last one.
    const float* sums[kSumRows];
    for (int i = 0; i < kSumRows; ++i) {
      sums[i] = weights.sums + static_cast<size_t>(i < rows ? r + i : r + rows - 1) * weights.entries;
    }
    for (int c = 0; c < d; c += kLanes) {
      F32 totals[kSumRows];
#pragma GCC unroll 4
      for (int i = 0; i < kSumRows; ++i) totals[i] = splat(0.0f);
      for (int n = 0; n < model.page.codes; ++n) {
        const F32 row = load_half(model.row(weights.head, n) + c);
#pragma GCC unroll 4
        for (int i = 0; i < kSumRows; ++i) totals[i] = fma(splat(sums[i][n]), row, totals[i]);
      }
      for (int i = 0; i < rows; ++i) {
        float* output = outputs + static_cast<size_t>(r + i) * d + c;
        store(output, load(output) + totals[i]);
      }
    }
  }
}

}  // namespace

const CodecKernels commvq_kernels = {
    commvq::encode, commvq::decode, key_scores, value_sum, nullptr, end_values,
};

}  // namespace kvasir::KVASIR_LEVEL
