// The verbs of base/codebook.h. Each backend includes this in one source file; nothing leaves it.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX__) || defined(__SSE2__)
// GCC 12 takes the "undefined" operands inside its own intrinsics for uninitialised variables (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "base/codebook.h"

namespace kvasir::codebook {
namespace {

#define KVASIR_INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kRowTile = 4, kBlockTile = 4;
#elif defined(__AVX__)
constexpr int kLanes = 8;
constexpr int kRowTile = 6, kBlockTile = 1;
#else
constexpr int kLanes = 4;
constexpr int kRowTile = 2, kBlockTile = 1;
#endif
constexpr int kParts = kCodebookBlock / kLanes;
typedef float Part __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t IntPart __attribute__((vector_size(kLanes * sizeof(float))));

// IEEE square roots: the same on every machine.
KVASIR_INLINE Part root(Part a) {
#if defined(__AVX512F__)
  return _mm512_sqrt_ps(a);
#elif defined(__AVX__)
  return _mm256_sqrt_ps(a);
#elif defined(__SSE2__)
  return _mm_sqrt_ps(a);
#elif defined(__aarch64__)
  return (Part)vsqrtq_f32((float32x4_t)a);
#else
  for (int i = 0; i < kLanes; ++i) a[i] = __builtin_sqrtf(a[i]);
  return a;
#endif
}

// Whether any lane of a comparison holds.
KVASIR_INLINE bool any(IntPart mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX__)
  return _mm256_movemask_ps((__m256)mask) != 0;
#elif defined(__SSE2__)
  return _mm_movemask_ps((__m128)mask) != 0;
#elif defined(__aarch64__)
  return vmaxvq_u32((uint32x4_t)mask) != 0;
#else
  int32_t all = 0;
  for (int i = 0; i < kLanes; ++i) all |= mask[i];
  return all != 0;
#endif
}

KVASIR_INLINE Part splat(float a) { return a - Part{}; }

// e^a for a <= 0: relative error below 3e-7, and 0 where the result would not be a normal float. Products and sums
// alone, so that all levels agree.
KVASIR_INLINE Part exponential(Part a) {
  const Part smallest = splat(-87.33654f);  // ln 2^-126
  const Part bounded = a < smallest ? smallest : a;
  // Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the mantissa.
  const Part shifter = splat(12582912.0f);
  const Part shifted = bounded * 1.44269504f + shifter;
  const Part n = shifted - shifter;
  const Part f = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
  // e^f for |f| <= ln 2 / 2: the polynomial of degree 5 with the smallest relative error that begins with 1 + f.
  Part power = f * 0.00831250101f + 0.0418903306f;
  power = power * f + 0.166671157f;
  power = power * f + 0.499992311f;
  power = power * f + 1.0f;
  power = power * f + 1.0f;
  const Part scaled = (Part)((IntPart)power + ((IntPart)shifted << 23));
  return a < smallest ? Part{} : scaled;
}

// A block: sixteen lanes on every machine.
struct Block {
  Part p[kParts];
};

KVASIR_INLINE Block load(const float* from) {
  Block b;
  memcpy(&b, from, sizeof b);
  return b;
}
KVASIR_INLINE void store(float* to, const Block& b) { memcpy(to, &b, sizeof b); }
KVASIR_INLINE Block zero() { return Block{}; }

// Sums in an order that does not depend on the length of registers.
KVASIR_INLINE float sum(const Block& b) {
  float lanes[kCodebookBlock];
  store(lanes, b);
  for (int width = kCodebookBlock / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

template <int kRows, int kBlocks>
KVASIR_INLINE void products_tile(const float* rows, int row_stride, int depth, const float* columns, int width,
                                 float* out) {
  Block sums[kRows][kBlocks] = {};
  for (int k = 0; k < depth; ++k) {
    Block column[kBlocks];
    for (int b = 0; b < kBlocks; ++b) column[b] = load(columns + static_cast<size_t>(k) * width + b * kCodebookBlock);
    for (int r = 0; r < kRows; ++r) {
      const float x = rows[static_cast<size_t>(r) * row_stride + k];
      for (int b = 0; b < kBlocks; ++b) {
        for (int i = 0; i < kParts; ++i) sums[r][b].p[i] += x * column[b].p[i];
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int b = 0; b < kBlocks; ++b) store(out + static_cast<size_t>(r) * width + b * kCodebookBlock, sums[r][b]);
  }
}

template <int kRows>
KVASIR_INLINE void products_rows(const float* rows, int row_stride, int depth, const float* columns, int width,
                                 float* out) {
  int n = 0;
  for (; n + kBlockTile * kCodebookBlock <= width; n += kBlockTile * kCodebookBlock) {
    products_tile<kRows, kBlockTile>(rows, row_stride, depth, columns + n, width, out + n);
  }
  for (; n < width; n += kCodebookBlock) products_tile<kRows, 1>(rows, row_stride, depth, columns + n, width, out + n);
}

void products(const float* rows, int count, int row_stride, int depth, const float* columns, int width, float* out) {
  int r = 0;
  for (; r + kRowTile <= count; r += kRowTile) {
    products_rows<kRowTile>(rows + static_cast<size_t>(r) * row_stride, row_stride, depth, columns, width,
                            out + static_cast<size_t>(r) * width);
  }
  for (; r < count; ++r) {
    products_rows<1>(rows + static_cast<size_t>(r) * row_stride, row_stride, depth, columns, width,
                     out + static_cast<size_t>(r) * width);
  }
}

// The least value and the first place where it stands: blocks in turn, lanes kept apart until the end.
struct Least {
  Block value;
  IntPart place[kParts];

  KVASIR_INLINE Least() {
    for (int i = 0; i < kParts; ++i) value.p[i] = splat(__builtin_inff()), place[i] = IntPart{};
  }
  KVASIR_INLINE void add(const Block& block, int first) {
    for (int i = 0; i < kParts; ++i) {
      const IntPart less = block.p[i] < value.p[i];
      value.p[i] = less ? block.p[i] : value.p[i];
      place[i] = less ? IntPart{} + first : place[i];
    }
  }
  KVASIR_INLINE float find(int* where) const {
    float values[kCodebookBlock];
    int32_t places[kCodebookBlock];
    memcpy(values, &value, sizeof values);
    memcpy(places, place, sizeof places);
    int best = 0;
    for (int i = 1; i < kCodebookBlock; ++i) {
      if (values[i] < values[best] || (values[i] == values[best] && places[i] + i < places[best] + best)) best = i;
    }
    *where = places[best] + best;
    return values[best];
  }
};

KVASIR_INLINE Block scores_of(const float* cross, const float* of_b, float of_a) {
  Block block = load(cross);
  const Block second = load(of_b);
  for (int i = 0; i < kParts; ++i) block.p[i] = (block.p[i] + second.p[i]) + of_a;
  return block;
}

void nearest(const float* products, int count, int entries, const float* cross, int* codes, float* scores) {
  for (int r = 0; r < count; ++r, products += 2 * entries) {
    Least least;
    for (int a = 0; a < entries; ++a) {
      for (int b = 0; b < entries; b += kCodebookBlock) {
        least.add(scores_of(cross + a * entries + b, products + entries + b, products[a]), a * entries + b);
      }
    }
    scores[r] = least.find(&codes[r]);
  }
}

float soften(const float* products, int entries, const float* cross, float squared, float temperature, float* joint,
             float* marginals) {
  alignas(64) float table[kMaxCodebookEntries * kMaxCodebookEntries];
  const int size = entries * entries;
  Least least;
  for (int a = 0; a < entries; ++a) {
    for (int b = 0; b < entries; b += kCodebookBlock) {
      const Block scores = scores_of(cross + a * entries + b, products + entries + b, products[a]);
      store(table + a * entries + b, scores);
      least.add(scores, a * entries + b);
    }
  }
  int code;
  const float best = least.find(&code);
  const float shortest = __builtin_sqrtf(best + squared > 0.0f ? best + squared : 0.0f);
  // Distances beyond shortest + 25 temperatures weigh nothing in float32.
  const float longest = shortest + 25.0f * temperature;
  const float limit = longest * longest - squared;
  const float slope = -1.0f / temperature;
  short active[kMaxCodebookEntries * kMaxCodebookEntries / kCodebookBlock];
  int active_count = 0;
  Block total = zero();
  for (int at = 0; at < size; at += kCodebookBlock) {
    Block block = load(table + at);
    bool heavy = false;
    for (int i = 0; i < kParts; ++i) heavy |= any(block.p[i] <= limit);
    // The nearest itself counts whatever rounding did to the limit.
    if (!heavy && at != code / kCodebookBlock * kCodebookBlock) continue;
    for (int i = 0; i < kParts; ++i) {
      const Part square = block.p[i] + squared;
      const Part distance = root(square > 0.0f ? square : Part{});
      const Part beyond = distance - shortest;
      const Part exponent = (beyond > 0.0f ? beyond : Part{}) * slope;
      block.p[i] = exponent < -25.0f ? Part{} : exponential(exponent);
      total.p[i] += block.p[i];
    }
    store(table + at, block);
    active[active_count++] = static_cast<short>(at);
  }
  const float scale = 1.0f / sum(total);
  memset(marginals, 0, 2 * entries * sizeof *marginals);
  Block row = zero();
  for (int n = 0; n < active_count; ++n) {
    const int at = active[n];
    const int a = at / entries, b = at % entries;
    Block weights = load(table + at), known = load(joint + at), column = load(marginals + entries + b);
    for (int i = 0; i < kParts; ++i) {
      weights.p[i] *= scale;
      known.p[i] += weights.p[i];
      column.p[i] += weights.p[i];
      row.p[i] += weights.p[i];
    }
    store(joint + at, known);
    store(marginals + entries + b, column);
    if (n + 1 == active_count || active[n + 1] / entries != a) {
      marginals[a] = sum(row);
      row = zero();
    }
  }
  return best;
}

void accumulate(const float* weights, int count, int entries, const float* rows, int row_stride, int width,
                float* sums) {
  for (int r = 0; r < count; ++r, weights += entries, rows += row_stride) {
    for (int e = 0; e < entries; ++e) {
      const float weight = weights[e];
      if (weight == 0.0f) continue;
      float* const to = sums + static_cast<size_t>(e) * width;
      for (int c = 0; c < width; c += kCodebookBlock) {
        const Block x = load(rows + c);
        Block y = load(to + c);
        for (int i = 0; i < kParts; ++i) y.p[i] += weight * x.p[i];
        store(to + c, y);
      }
    }
  }
}

void decide(const float* gram, const float* diagonal, const float* thresholds, int count, float* slopes, float* signs) {
  for (int bit = 0; bit < count; ++bit) {
    signs[bit] = -slopes[bit] > thresholds[bit] * diagonal[bit] ? -1.0f : 1.0f;
    if (signs[bit] > 0.0f) continue;
    const float* row = gram + static_cast<size_t>(bit) * count;
    for (int n = 0; n < count; n += kCodebookBlock) {
      Block slope = load(slopes + n);
      const Block step = load(row + n);
      for (int i = 0; i < kParts; ++i) slope.p[i] += step.p[i];
      store(slopes + n, slope);
    }
  }
}

int flip(const float* gram, const float* diagonal, int count, int limit, float* slopes, float* signs) {
  Least least;
  for (int n = 0; n < count; n += kCodebookBlock) {
    Block change = load(slopes + n);
    const Block sign = load(signs + n), own = load(diagonal + n);
    for (int i = 0; i < kParts; ++i) change.p[i] = own.p[i] + 2.0f * sign.p[i] * change.p[i];
    least.add(change, n);
  }
  int flips = 0;
  while (flips < limit) {
    int bit;
    const float change = least.find(&bit);
    // A change that rounding could have made is none: the loop must end.
    if (!(change < -1e-6f * diagonal[bit])) break;
    const float direction = signs[bit];
    signs[bit] = -direction;
    const float* row = gram + static_cast<size_t>(bit) * count;
    least = Least();
    for (int n = 0; n < count; n += kCodebookBlock) {
      Block slope = load(slopes + n), next;
      const Block step = load(row + n), sign = load(signs + n), own = load(diagonal + n);
      for (int i = 0; i < kParts; ++i) {
        slope.p[i] += direction * step.p[i];
        next.p[i] = own.p[i] + 2.0f * sign.p[i] * slope.p[i];
      }
      store(slopes + n, slope);
      least.add(next, n);
    }
    ++flips;
  }
  return flips;
}

constexpr CodebookKernels kKernels = {products, nearest, soften, accumulate, decide, flip};

#undef KVASIR_INLINE

}  // namespace
}  // namespace kvasir::codebook
