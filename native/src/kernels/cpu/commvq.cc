// The commvq codec.
//
// Keys: 2 * stages rows of the tables are added up for each token, 16 lanes at a time for all tokens of the page, so
// that the rows of a stage (8 KB) and the sums (8 KB) stay in the first cache; then each key is turned by its offset in
// the page and multiplied with all queries. Values: one-bit codes, contracted with the weights as bytes like those of
// the uniform codec, for all rows of the codebook; the codebook comes last, once.
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

// sums[t] += the rows of kStages stages.
template <int kStages>
void add_stages(const commvq::KeyModel& model, int kv_head, int chunk, int stage, const KeyCodes& codes, float* sums) {
  constexpr int kVectors = kChunk / kLanes;
  for (int t = 0; t < kPageTokens; ++t) {
    F32 sum[kVectors];
    for (int v = 0; v < kVectors; ++v) sum[v] = load(sums + t * kChunk + v * kLanes);
    for (int s = stage; s < stage + kStages; ++s) {
      const float* table = model.table(kv_head, chunk, s);
      const float* a = table + codes.a[s][t] * kChunk;
      const float* b = table + (model.entries + codes.b[s][t]) * kChunk;
      for (int v = 0; v < kVectors; ++v) sum[v] = sum[v] + (load(a + v * kLanes) + load(b + v * kLanes));
    }
    for (int v = 0; v < kVectors; ++v) store(sums + t * kChunk + v * kLanes, sum[v]);
  }
}

void key_scores(const PageFormat& format, const uint8_t* page, const TileInput& queries, float* scores) {
  const commvq::KeyModel& model = keys_of(format);
  const int d = format.head_dim;
  KeyCodes codes;
  unpack_head(model.page, page, queries.head, codes);
  alignas(64) float keys[kPageTokens * kMaxHeadDim];  // [head_dim / kChunk][kPageTokens][kChunk]
  memset(keys, 0, sizeof(float) * kPageTokens * d);
  for (int chunk = 0; chunk < d / kChunk; ++chunk) {
    float* sums = keys + static_cast<size_t>(chunk) * kPageTokens * kChunk;
    int s = 0;
    for (; s + 2 <= model.page.stages; s += 2) add_stages<2>(model, queries.head, chunk, s, codes, sums);
    for (; s < model.page.stages; ++s) add_stages<1>(model, queries.head, chunk, s, codes, sums);
  }
  const auto* norms = reinterpret_cast<const uint16_t*>(page);
  for (int t = 0; t < kPageTokens; t += kTurnedTokens) {
    alignas(64) float block[kTurnedTokens][kMaxHeadDim];
    for (int i = 0; i < kTurnedTokens; ++i) {
      const F32 norm = splat(half_to_float(norms[t + i]));
      for (int c = 0; c < d; c += kLanes) {
        const size_t at = (static_cast<size_t>(c / kChunk) * kPageTokens + t + i) * kChunk + c % kChunk;
        store(block[i] + c, load(keys + at) * norm);
      }
    }
    score_turned(block, kTurnedTokens, d, t, queries, scores);
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

void end_values(const PageFormat& format, const SideView&, const TileInput& weights, float* outputs) {
  const commvq::ValueModel& model = values_of(format);
  const int d = format.head_dim;
  for (int r = 0; r < weights.count; ++r) {
    const float* sums = weights.sums + static_cast<size_t>(r) * weights.entries;
    float* output = outputs + static_cast<size_t>(r) * d;
    for (int n = 0; n < model.page.codes; ++n) {
      const uint16_t* row = model.row(weights.head, n);
      const F32 weight = splat(sums[n]);
      for (int c = 0; c < d; c += kLanes) store(output + c, fma(weight, load_half(row + c), load(output + c)));
    }
  }
}

}  // namespace

const CodecKernels commvq_kernels = {encode, decode, key_scores, value_sum, nullptr, end_values};

}  // namespace kvasir::KVASIR_LEVEL
