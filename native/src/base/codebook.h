// Searches in trained codebooks, as verbs that a backend supplies. Codebooks and their trainers are handed them.
//
// They are written once (kernels/codebook_inl.h) over sixteen virtual lanes, without fused multiply-add and with sums
// in one fixed order, so that all levels return the same bits: a codebook that was trained on one machine is the
// codebook that any other would have trained.
#pragma once

namespace kvasir {

// Lanes of a block. Widths below are multiples of it.
constexpr int kCodebookBlock = 16;
constexpr int kMaxCodebookEntries = 64;

struct CodebookKernels {
  // out[r][n] = sum over k of rows[r][k] * columns[k][n]. columns: [depth][width].
  void (*products)(const float* rows, int count, int row_stride, int depth, const float* columns, int width,
                   float* out);

  // The nearest of the centres (a, b) of a stage. products: [count][2 * entries], -2 <x, z_a> and then -2 <x, i z_b>;
  // cross: [entries][entries], |z_a + i z_b|^2. codes[r] = a * entries + b, the first of equals; scores[r] is the
  // squared distance less |x|^2.
  void (*nearest)(const float* products, int count, int entries, const float* cross, int* codes, float* scores);

  // Soft assignment of one point: w_ab proportional to exp(-distance / temperature), summing to 1. Adds w to joint
  // ([entries][entries]) and writes its sums over b and over a to marginals ([2 * entries]). squared: |x|^2. Weights
  // below e^-25 of the largest are 0. Returns the score of the nearest centre, as above.
  float (*soften)(const float* products, int entries, const float* cross, float squared, float temperature,
                  float* joint, float* marginals);

  // sums[e][c] += sum over r of weights[r][e] * rows[r][c]. weights: [count][entries], many of them 0.
  void (*accumulate)(const float* weights, int count, int entries, const float* rows, int row_stride, int width,
                     float* sums);

  // Bits in their order, each decided for good: bit n is set where what is left of the point has more than
  // thresholds[n] of row n in it, -slopes[n] > thresholds[n] * diagonal[n]. Other arguments as below; no bit is set
  // before.
  void (*decide)(const float* gram, const float* diagonal, const float* thresholds, int count, float* slopes,
                 float* signs);

  // Descent by single bits. For bits s (as 0.0 or 1.0) the objective is s K s - 2 h s; flips the bit that lowers it
  // most until none does or `limit` were flipped, and returns the flips. gram: [count][count], symmetric; slopes
  // ([count], in and out): K s - h; signs ([count], in and out): 1 where s is 0, -1 where it is 1.
  int (*flip)(const float* gram, const float* diagonal, int count, int limit, float* slopes, float* signs);
};

}  // namespace kvasir
