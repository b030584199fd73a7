// The weights of a value encoder and the parts of its arithmetic that inference and training share.
#pragma once

#include <cstddef>
#include <vector>

#include "base/codebook.h"
#include "codecs/commvq/model.h"
#include "kvasir/commvq.h"

namespace kvasir {
namespace commvq {

struct EncoderWeights {
  int width, hidden, codes;
  std::vector<float> scale, norm_weight, norm_bias;  // [width]
  std::vector<float> first_weight, first_bias;       // [hidden][width], [hidden]
  std::vector<float> second_weight, second_bias;     // [2 * codes][hidden], [2 * codes]

  // Throws kInvalidArgument for sizes that no encoder has.
  EncoderWeights(int width, int hidden, int codes);
};

// The input of the encoder before norm_weight and norm_bias: scaled, of length 1, then of mean 0 and variance 1.
void standardise(const EncoderWeights& weights, const float* row, float* out);

// x * P(normal variable <= x).
float gelu(float x);
// Its derivative.
float gelu_slope(float x);

// The largest of four logits, the first of equals.
inline int class_of(const float* logits) {
  int best = 0;
  for (int i = 1; i < 4; ++i) best = logits[i] > logits[best] ? i : best;
  return best;
}
// The two bits of a class.
constexpr bool kFirstBit[4] = {true, false, true, false};
constexpr bool kSecondBit[4] = {false, true, true, false};

}  // namespace commvq

struct ValueEncoder::Impl {
  // Checks its arguments, those of ValueEncoder::create.
  Impl(int width, int codes, const commvq::ValueNetwork& given, const CodebookKernels& kernels);

  const CodebookKernels& kernels;
  commvq::EncoderWeights weights;
};

}  // namespace kvasir
