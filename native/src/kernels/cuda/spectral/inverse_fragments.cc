#include "kernels/cuda/spectral/inverse_fragments.h"

namespace kvasir::cuda {
namespace {

// Bytes of four channels from `first` on. digit: 0 for high ones, 1 for low ones.
uint32_t word_of(const int16_t* inverse, int d, int coefficient, int first, int digit) {
  uint32_t word = 0;
  for (int i = 0; i < 4 && first + i < d; ++i) {
    const int channel = first + i, number = inverse[(channel / 2 * d + coefficient) * 2 + channel % 2];
    const int high = (number + 128) >> 8, low = number - 256 * high;
    word |= static_cast<uint32_t>(static_cast<uint8_t>(digit == 0 ? high : low)) << 8 * i;
  }
  return word;
}

}  // namespace

std::vector<uint32_t> inverse_fragments(const Basis& basis) {
  const int d = basis.head_dim();
  std::vector<uint32_t> words;
  words.reserve(static_cast<size_t>(basis.kv_heads()) * inverse_words(d));
  for (int head = 0; head < basis.kv_heads(); ++head) {
    for (int coefficient = 0; coefficient < d; coefficient += 8) {
      for (int step = 0; step < inverse_steps(d); ++step) {
        for (int lane = 0; lane < 32; ++lane) {
          for (int i = 0; i < 4; ++i) {
            const int first = 32 * step + 16 * (i % 2) + 4 * (lane % 4);
            words.push_back(word_of(basis.inverse(head), d, coefficient + lane / 4, first, i / 2));
          }
        }
      }
    }
  }
  return words;
}

}  // namespace kvasir::cuda
