// The commvq codec.
//
// Keys: 2 * stages rows of the tables are added up for each token, 16 lanes at a time and in registers; then a few keys
// at a time are turned by their offsets in the page and multiplied with all queries. Values: one-bit codes, contracted
// with the weights as bytes like those of the uniform codec, for all rows of the codebook; the codebook comes last,
// once.
#include "base/half.h"
#include "codecs/commvq/model.h"
#include "kernels/commvq_inl.h"
#include "kernels/cpu/byte_rows.h"
#include "kernels/cpu/code_dots.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/turned.h"

namespace kvasir::KVASIR_LEVEL {
namespace {

using commvq::kChunk;

const commvq::KeyModel& keys_of(const PageFormat& format) {
  return static_cast<const commvq::KeyModel&>(*format.model);
}
const commvq::ValueModel& values_of(const PageFormat& format) {
  return static_cast<const commvq::ValueModel&>(*format.model);
}

void encode(const PageFormat& format, const float* rows, uint8_t* page) { format.model->encode(rows, page); }
void decode(const PageFormat& format, const uint8_t* page, float* rows) { format.model->decode(page, rows); }

// Codes of all tokens, with the sums of their rows.
struct DecodedKeys {
  KeyCodes codes;
  alignas(64) float sums[kMaxHeadDim / kChunk][kPageTokens][kChunk];
};

// sums[t] += the rows of kStages stages.
template <int kStages, bool kFirst>
void add_stages(const commvq::KeyModel& model, const float* tables, int stage, const KeyCodes& codes,
                float (*sums)[kChunk]) {
  constexpr int kVectors = kChunk / kLanes;
  const int table = 2 * model.entries * kChunk;
  for (int t = 0; t < kPageTokens; ++t) {
    for (int v = 0; v < kVectors; ++v) {
      F32 sum = kFirst ? splat(0.0f) : load(sums[t] + v * kLanes);
#pragma GCC unroll 4
      for (int s = 0; s < kStages; ++s) {
        const float* rows = tables + s * table + v * kLanes;
        sum = sum + (load(rows + codes.a[stage + s][t]) + load(rows + codes.b[stage + s][t]));
      }
      store(sums[t] + v * kLanes, sum);
    }
  }
}

// Two stages at a time, for all tokens of the page: their rows (16 KB) and the sums (8 KB) stay in the first cache.
void decode_chunk(const commvq::KeyModel& model, int kv_head, int chunk, const KeyCodes& codes, float (*sums)[kChunk]) {
  const float* tables = model.table(kv_head, chunk, 0);
  const int table = 2 * model.entries * kChunk;
  const int stages = model.page.stages;
  (stages == 1 ? add_stages<1, true> : add_stages<2, true>)(model, tables, 0, codes, sums);
  int s = 2;
  for (; s + 2 <= stages; s += 2) add_stages<2, false>(model, tables + s * table, s, codes, sums);
  if (s < stages) add_stages<1, false>(model, tables + s * table, s, codes, sums);
}

void key_scores(const PageFormat& format, const uint8_t* page, const TileInput& queries, float* scores) {
  const commvq::KeyModel& model = keys_of(format);
  const int d = format.head_dim;
  DecodedKeys keys;
  unpack_head(model.page, page, queries.head, keys.codes);
  for (int chunk = 0; chunk < d / kChunk; ++chunk) {
    decode_chunk(model, queries.head, chunk, keys.codes, keys.sums[chunk]);
  }
  for (int t = 0; t < kPageTokens; t += kTurnedTokens) {
    alignas(64) float block[kTurnedTokens][kMaxHeadDim];
    for (int i = 0; i < kTurnedTokens; ++i) {
      for (int c = 0; c < d; c += kLanes) store(block[i] + c, load(keys.sums[c / kChunk][t + i] + c % kChunk));
    }
    score_turned(block, kTurnedTokens, d, t, queries, scores);
  }
  const auto* norms = reinterpret_cast<const uint16_t*>(page);
  for (int t = 0; t < kPageTokens; t += kLanes) {
    const F32 norm = load_half(norms + t);
    for (int r = 0; r < queries.count; ++r) {
      store(scores + r * kPageTokens + t, load(scores + r * kPageTokens + t) * norm);
    }
  }
}

// Rows of the codebook that one pass takes: totals have room for kMaxSize.
void value_sum(const PageFormat& format, const uint8_t* page, const TileInput& weights, float*) {
  const commvq::ValuePage layout = values_of(format).page;
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
          const F32 total = to_float(row.split ? (load(high + n) << 7) + load(low + n) : load(high + n));
          store(sums + n, fma(total, splat(row.scale), load(sums + n)));
        }
      }
    }
  }
}

constexpr int kSumRows = 4;

void end_values(const PageFormat& format, const SideView&, const TileInput& weights, float* outputs) {
  const commvq::ValueModel& model = values_of(format);
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

const CodecKernels commvq_kernels = {encode, decode, key_scores, value_sum, nullptr, end_values};

}  // namespace kvasir::KVASIR_LEVEL
