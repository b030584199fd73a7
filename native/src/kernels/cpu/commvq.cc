// The commvq codec.
//
// Keys: 2 * stages rows of the tables are added up for each token, 16 lanes at a time, in registers and from tables
// that stay in the first cache; then a few keys at a time are turned by their offsets in the page and multiplied with
// all queries. Values: one-bit codes, contracted with the weights as bytes like those of the uniform codec, for all
// rows of the codebook; the codebook comes last, once.
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

// Sums of rows for all tokens of a page: of those that stand as they are, and of those to be multiplied by i. Both
// begin at the same place of a 4 KB page, so that their stores stand in the way of few loads.
struct KeySums {
  alignas(64) float plain[kPageTokens][kMaxHeadDim];
  alignas(64) float times_i[kPageTokens][kMaxHeadDim];
};

// Tokens whose sums stay in registers together.
constexpr int kDecodeTokens = kLanes == 16 ? 4 : 2;

void sum_chunk(const commvq::KeyModel& model, int kv_head, int chunk, const KeyCodes& codes, KeySums& out) {
  constexpr int kVectors = kChunk / kLanes;
  for (int t = 0; t < kPageTokens; t += kDecodeTokens) {
    const uint16_t* tables = model.chunk_tables(kv_head, chunk);
    F32 a[kDecodeTokens][kVectors], b[kDecodeTokens][kVectors];  // in registers, because every loop is unrolled
#pragma GCC unroll 4
    for (int i = 0; i < kDecodeTokens; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) a[i][v] = b[i][v] = splat(0.0f);
    }
    for (int s = 0; s < model.page.stages; ++s, tables += model.entries * kChunk) {
#pragma GCC unroll 4
      for (int i = 0; i < kDecodeTokens; ++i) {
        const uint16_t* first = tables + codes.a[s][t + i];
        const uint16_t* second = tables + codes.b[s][t + i];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          a[i][v] = a[i][v] + load_half(first + v * kLanes);
          b[i][v] = b[i][v] + load_half(second + v * kLanes);
        }
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kDecodeTokens; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        store(out.plain[t + i] + chunk * kChunk + v * kLanes, a[i][v]);
        store(out.times_i[t + i] + chunk * kChunk + v * kLanes, b[i][v]);
      }
    }
  }
}

// key = plain + i times_i, planar.
void combine(const float* plain, const float* times_i, int half, float* key) {
  int j = 0;
  for (; j + kLanes <= half; j += kLanes) {
    store(key + j, load(plain + j) - load(times_i + half + j));
    store(key + half + j, load(plain + half + j) + load(times_i + j));
  }
  for (; j < half; ++j) {
    key[j] = plain[j] - times_i[half + j];
    key[half + j] = plain[half + j] + times_i[j];
  }
}

void key_scores(const PageFormat& format, const uint8_t* page, const TileInput& queries, float* scores) {
  const commvq::KeyModel& model = commvq::keys_of(format);
  const int d = format.head_dim;
  KeyCodes codes;
  unpack_head(model.page, page, queries.head, codes);
  KeySums sums;
  for (int chunk = 0; chunk < d / kChunk; ++chunk) sum_chunk(model, queries.head, chunk, codes, sums);
  for (int t = 0; t < kPageTokens; t += kTurnedTokens) {
    alignas(64) float block[kTurnedTokens][kMaxHeadDim];
    for (int i = 0; i < kTurnedTokens; ++i) combine(sums.plain[t + i], sums.times_i[t + i], d / 2, block[i]);
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
