// Verbs over float16 rows, and the softmax.
#include "base/half.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exponential.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/turned.h"

namespace kvasir::KVASIR_LEVEL {
namespace {

// Largest magnitude seen, compared as an integer: NaN and infinity are above every number.
template <class Bits>
bool all_at_most(Bits limit, const void* elements, size_t count) {
  const Bits magnitude = static_cast<Bits>(~Bits{0}) >> 1;
  Bits most = 0;
  for (size_t i = 0; i < count; ++i) {
    Bits bits;
    memcpy(&bits, static_cast<const char*>(elements) + i * sizeof bits, sizeof bits);
    bits &= magnitude;
    most = bits > most ? bits : most;
  }
  return most <= limit;
}

bool check(const void* elements, ElementType type, size_t count) {
  static_assert(kMaxMagnitude == 32752.0f, "the limits below are its bits");
  switch (type) {
    case ElementType::kFloat32:
      return all_at_most<uint32_t>(0x46FFE000, elements, count);
    case ElementType::kFloat16:
      return all_at_most<uint16_t>(0x77FF, elements, count);
    case ElementType::kBFloat16:
      return all_at_most<uint16_t>(0x46FF, elements, count);
  }
  return false;
}

void floats_to_half(const float* elements, size_t count, uint16_t* out) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store_half(out + i, load(elements + i));
  for (; i < count; ++i) out[i] = float_to_half(elements[i]);
}

void bfloats_to_half(const uint16_t* elements, size_t count, uint16_t* out) {
  constexpr size_t kBlock = 64;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t size = count - begin < kBlock ? count - begin : kBlock;
    float floats[kBlock];
    for (size_t i = 0; i < size; ++i) floats[i] = bfloat_to_float(elements[begin + i]);
    floats_to_half(floats, size, out + begin);
  }
}

void to_half(const void* elements, ElementType type, size_t count, uint16_t* out) {
  switch (type) {
    case ElementType::kFloat32:
      return floats_to_half(static_cast<const float*>(elements), count, out);
    case ElementType::kFloat16:
      memcpy(out, elements, count * sizeof *out);
      return;
    case ElementType::kBFloat16:
      return bfloats_to_half(static_cast<const uint16_t*>(elements), count, out);
  }
}

void from_half(const uint16_t* halves, size_t count, float* out) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(out + i, load_half(halves + i));
  for (; i < count; ++i) out[i] = half_to_float(halves[i]);
}

inline F32 load_row(const uint16_t* row) { return load_half(row); }
inline F32 load_row(const float* row) { return load(row); }

// Input rows that share each converted element, as many as leave registers for four of something else.
constexpr int kRowBlock = kRegisters / 8;

template <int kRows, int kTokens, class Element>
void score_block(const Element* keys, int key_stride, int head_dim, const float* queries, int stride, float* scores) {
  F32 sums[kRows][kTokens];  // in registers, because every loop over it is unrolled
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) sums[r][t] = splat(0.0f);
  }
  for (int c = 0; c < head_dim; c += kLanes) {
    F32 key[kTokens];
    for (int t = 0; t < kTokens; ++t) key[t] = load_row(keys + t * key_stride + c);
    for (int r = 0; r < kRows; ++r) {
      const F32 query = load(queries + r * stride + c);
      for (int t = 0; t < kTokens; ++t) sums[r][t] = fma(query, key[t], sums[r][t]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    float* out = scores + r * kPageTokens;
    if constexpr (kTokens == 4) {
      store_sums(out, sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
    } else {
      for (int t = 0; t < kTokens; ++t) out[t] = sum(sums[r][t]);
    }
  }
}

template <int kTokens, class Element>
void score_rows(const Element* keys, int key_stride, int head_dim, const TileInput& queries, float* scores) {
  for (int r = 0; r < queries.count; r += kRowBlock) {
    const float* rows = queries.rows + static_cast<size_t>(r) * queries.stride;
    float* out = scores + r * kPageTokens;
    switch (queries.count - r) {
      case 1:
        score_block<1, kTokens>(keys, key_stride, head_dim, rows, queries.stride, out);
        break;
      case 2:
        score_block<2, kTokens>(keys, key_stride, head_dim, rows, queries.stride, out);
        break;
      case 3:
        score_block < kRowBlock<3 ? kRowBlock : 3, kTokens>(keys, key_stride, head_dim, rows, queries.stride, out);
        break;
      default:
        score_block<kRowBlock, kTokens>(keys, key_stride, head_dim, rows, queries.stride, out);
    }
  }
}

template <class Element>
void scores_of(const Element* rows, int tokens, int stride, int dim, const TileInput& queries, float* scores) {
  int t = 0;
  for (; t + 4 <= tokens; t += 4) {
    score_rows<4>(rows + static_cast<size_t>(t) * stride, stride, dim, queries, scores + t);
  }
  for (; t < tokens; ++t) score_rows<1>(rows + static_cast<size_t>(t) * stride, stride, dim, queries, scores + t);
}

// Scores of many rows, with tokens as lanes: keys are turned once, and no lanes have to be added up for each score.
constexpr int kColumnRows = 8;  // at once

#if defined(__AVX512VNNI__)
constexpr int kLeastColumnRows = 16;  // from so many on turning pays

// 16 channels of 16 keys: columns[c][t].
inline void turn_keys(const uint16_t* keys, int key_stride, float* columns, int column_stride) {
  F32 square[kLanes];
#pragma GCC unroll 16
  for (int t = 0; t < kLanes; ++t) square[t] = load_half(keys + t * key_stride);
  turn_square(square);
#pragma GCC unroll 16
  for (int c = 0; c < kLanes; ++c) store(columns + c * column_stride, square[c]);
}

// kVectors * kLanes tokens.
template <int kVectors>
void score_columns(const uint16_t* rows, int head_dim, const TileInput& queries, float* scores) {
  constexpr int kTokens = kVectors * kLanes;
  alignas(64) float columns[kMaxHeadDim * kTokens];
  for (int v = 0; v < kTokens; v += kLanes) {
    for (int c = 0; c < head_dim; c += kLanes) {
      turn_keys(rows + static_cast<size_t>(v) * head_dim + c, head_dim, columns + c * kTokens + v, kTokens);
    }
  }
  for (int r = 0; r + kColumnRows <= queries.count; r += kColumnRows) {
    const float* query = queries.rows + static_cast<size_t>(r) * queries.stride;
    F32 sums[kColumnRows][kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kColumnRows; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[i][v] = splat(0.0f);
    }
    for (int c = 0; c < head_dim; ++c) {
      F32 column[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) column[v] = load(columns + c * kTokens + v * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < kColumnRows; ++i) {
        const F32 factor = splat(query[i * queries.stride + c]);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) sums[i][v] = fma(factor, column[v], sums[i][v]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kColumnRows; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) store(scores + (r + i) * kPageTokens + v * kLanes, sums[i][v]);
    }
  }
}

// For how many of the tokens it did, for all rows but the last queries.count % kColumnRows.
int column_scores(const uint16_t* rows, int tokens, int head_dim, const TileInput& queries, float* scores) {
  if (queries.count < kLeastColumnRows) return 0;
  int t = 0;
  const auto keys = [&] { return rows + static_cast<size_t>(t) * head_dim; };
  for (; t + 2 * kLanes <= tokens; t += 2 * kLanes) score_columns<2>(keys(), head_dim, queries, scores + t);
  for (; t + kLanes <= tokens; t += kLanes) score_columns<1>(keys(), head_dim, queries, scores + t);
  return t;
}
#else
int column_scores(const uint16_t*, int, int, const TileInput&, float*) { return 0; }
#endif

void key_scores(const uint16_t* rows, int tokens, int head_dim, const TileInput& queries, float* scores) {
  const int done = column_scores(rows, tokens, head_dim, queries, scores);
  const int many = done > 0 ? queries.count / kColumnRows * kColumnRows : 0;  // rows that have their scores up to there
  const size_t rest = static_cast<size_t>(done) * head_dim;
  scores_of(rows + rest, tokens - done, head_dim, head_dim, queries, scores + done);
  if (done == 0 || many == queries.count) return;
  TileInput others = queries;
  others.rows += static_cast<size_t>(many) * queries.stride;
  others.count -= many;
  scores_of(rows, done, head_dim, head_dim, others, scores + many * kPageTokens);
}

void float_scores(const float* rows, int tokens, int stride, int dim, const TileInput& queries, float* scores) {
  scores_of(rows, tokens, stride, dim, queries, scores);
}

void turned_scores(const uint16_t* rows, int tokens, int head_dim, const TileInput& queries, float* scores) {
  const int half = head_dim / 2;
  for (int t = 0; t < tokens; t += kTurnedTokens) {
    const int count = tokens - t < kTurnedTokens ? tokens - t : kTurnedTokens;
    alignas(64) float block[kTurnedTokens][kMaxHeadDim];
    for (int i = 0; i < kTurnedTokens; ++i) {
      const uint16_t* row = rows + static_cast<size_t>(t + (i < count ? i : 0)) * head_dim;
      if (!queries.neighbours) {
        for (int c = 0; c < head_dim; c += kLanes) store(block[i] + c, load_half(row + c));
        continue;
      }
      alignas(64) float pairs[kMaxHeadDim];
      for (int c = 0; c < head_dim; c += kLanes) store(pairs + c, load_half(row + c));
      for (int j = 0; j < half; ++j) {
        block[i][j] = pairs[2 * j];
        block[i][half + j] = pairs[2 * j + 1];
      }
    }
    score_turned(block, count, head_dim, t, queries, scores);
  }
}

// kVectors * kLanes channels of the outputs of kRows rows.
template <int kRows, int kVectors, class Element>
void sum_block(const Element* values, int tokens, int value_stride, int head_dim, const float* weights, int stride,
               float* outputs) {
  F32 sums[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[r][v] = load(outputs + r * head_dim + v * kLanes);
  }
  for (int t = 0; t < tokens; ++t) {
    F32 value[kVectors];
    for (int v = 0; v < kVectors; ++v) value[v] = load_row(values + static_cast<size_t>(t) * value_stride + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const F32 weight = splat(weights[r * stride + t]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = fma(weight, value[v], sums[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(outputs + r * head_dim + v * kLanes, sums[r][v]);
  }
}

template <int kVectors, class Element>
void sum_channels(const Element* values, int tokens, int value_stride, int head_dim, const TileInput& weights,
                  float* outputs) {
  for (int r = 0; r < weights.count; r += kRowBlock) {
    const float* rows = weights.rows + static_cast<size_t>(r) * weights.stride;
    float* out = outputs + static_cast<size_t>(r) * head_dim;
    switch (weights.count - r) {
      case 1:
        sum_block<1, kVectors>(values, tokens, value_stride, head_dim, rows, weights.stride, out);
        break;
      case 2:
        sum_block<2, kVectors>(values, tokens, value_stride, head_dim, rows, weights.stride, out);
        break;
      case 3:
        sum_block <
            kRowBlock<3 ? kRowBlock : 3, kVectors>(values, tokens, value_stride, head_dim, rows, weights.stride, out);
        break;
      default:
        sum_block<kRowBlock, kVectors>(values, tokens, value_stride, head_dim, rows, weights.stride, out);
    }
  }
}

template <class Element>
void sums_of(const Element* rows, int tokens, int stride, int dim, const TileInput& weights, float* outputs) {
  int c = 0;
  for (; c + 4 * kLanes <= dim; c += 4 * kLanes) sum_channels<4>(rows + c, tokens, stride, dim, weights, outputs + c);
  for (; c < dim; c += kLanes) sum_channels<1>(rows + c, tokens, stride, dim, weights, outputs + c);
}

void value_sum(const uint16_t* rows, int tokens, int head_dim, const TileInput& weights, float* outputs) {
  sums_of(rows, tokens, head_dim, head_dim, weights, outputs);
}

void float_sum(const float* rows, int tokens, int stride, int dim, const TileInput& weights, float* outputs) {
  sums_of(rows, tokens, stride, dim, weights, outputs);
}

void softmax(float* scores, int begin, int end, float* max_score, float* sum_weights, float* output, int head_dim) {
  for (int t = 0; t < begin; ++t) scores[t] = -__builtin_inff();
  for (int t = end; t < kPageTokens; ++t) scores[t] = -__builtin_inff();

  F32 most = splat(*max_score);
  for (int t = 0; t < kPageTokens; t += kLanes) most = max(most, load(scores + t));
  const float new_max = highest(most);

  F32 total = splat(0.0f);
  for (int t = 0; t < kPageTokens; t += kLanes) {
    const F32 weight = exponential(load(scores + t) - splat(new_max));
    store(scores + t, weight);
    total = total + weight;
  }

  // Most steps find no new maximum, and the outputs stay as they are.
  if (new_max != *max_score) {
    const F32 rescale = exponential(splat(*max_score - new_max));
    for (int c = 0; c < head_dim; c += kLanes) store(output + c, load(output + c) * rescale);
    *sum_weights *= rescale[0];
    *max_score = new_max;
  }
  *sum_weights += sum(total);
}

// tanh x = 1 - 2 e / (1 + e), e = exp(-2 x), for x >= 0. Small x would lose their digits to the 1, and a large cap
// makes all of them small: they go by the series.
void soft_cap(float* scores, int begin, int end, float cap) {
  const F32 limit = splat(cap), zero = splat(0.0f), one = splat(1.0f), two = splat(2.0f);
  for (int t = begin / kLanes * kLanes; t < end; t += kLanes) {
    const F32 score = load(scores + t), size = abs(score), x = size / limit;
    const F32 e = exponential(zero - two * x), square = x * x;
    F32 series = fma(square, splat(-17.0f / 315.0f), splat(2.0f / 15.0f));
    series = fma(square, series, splat(-1.0f / 3.0f));
    series = fma(square, series, one);
    const F32 magnitude = x < splat(0.25f) ? size * series : limit * (one - two * e / (one + e));
    store(scores + t, score < zero ? zero - magnitude : magnitude);
  }
}

}  // namespace

const RowKernels row_kernels = {check,        to_half,   from_half,     key_scores, value_sum,
                                float_scores, float_sum, turned_scores, softmax,    soft_cap};

}  // namespace kvasir::KVASIR_LEVEL
