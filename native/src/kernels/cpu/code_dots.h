// Integer products of packed codes with rows of signed bytes: the inner loop of attention on compressed pages.
//
// A code matrix is contracted along x, 16 at a time (a unit): for one register of y, a unit is four vectors whose
// 32-bit lanes hold the codes of four consecutive x. Unpacking them costs about two instructions each, and all byte
// rows then use them, so the work per code is one byte dot product per row.
#pragma once

#include "kernels/cpu/simd.h"

namespace kvasir::KVASIR_LEVEL {

constexpr int kUnit = 16;        // x per unit
constexpr int kMaxSize = 256;    // most x or y there are: head dims and page tokens
constexpr int kMaxByteRows = 8;  // byte rows that one pass over the codes takes

// Codes of 1 to 8 bits, in one plane or (3 bits) two.
struct CodeMatrix {
  const uint8_t* low;
  size_t low_stride;    // bytes from one block of 16 y to the next
  const uint8_t* high;  // bit 2 of 3-bit codes
  size_t high_stride;
};

// The codes of one unit. `low` and `high` point at the register's first word in unit 0.
template <int kBits>
inline void load_codes(const uint8_t* low, const uint8_t* high, int unit, U32 (&codes)[4]) {
  constexpr int kVector = 64;
  if constexpr (kBits == 1) {
    const U32 words = load_words(low + unit / 2 * kVector) >> (unit % 2 * 4);
    for (int i = 0; i < 4; ++i) codes[i] = (words >> i) & 0x01010101u;
  } else if constexpr (kBits == 2) {
    const U32 words = load_words(low + unit * kVector);
    for (int i = 0; i < 4; ++i) codes[i] = (words >> (2 * i)) & 0x03030303u;
  } else if constexpr (kBits == 3) {
    const U32 words = load_words(low + unit * kVector);
    const U32 tops = load_words(high + unit / 2 * kVector) >> (unit % 2 * 4);
    codes[0] = (words & 0x03030303u) | ((tops << 2) & 0x04040404u);
    codes[1] = ((words >> 2) & 0x03030303u) | ((tops << 1) & 0x04040404u);
    codes[2] = ((words >> 4) & 0x03030303u) | (tops & 0x04040404u);
    codes[3] = ((words >> 6) & 0x03030303u) | ((tops >> 1) & 0x04040404u);
  } else if constexpr (kBits == 4) {
    for (int i = 0; i < 4; i += 2) {
      const U32 words = load_words(low + (2 * unit + i / 2) * kVector);
      codes[i] = words & 0x0F0F0F0Fu;
      codes[i + 1] = (words >> 4) & 0x0F0F0F0Fu;
    }
  } else {
    for (int i = 0; i < 4; ++i) codes[i] = sign_bytes(load_words(low + (4 * unit + i) * kVector));
  }
}

// totals[row][y] for kVectors registers of y.
template <int kBits, int kRows, int kVectors>
inline void multiply_block(const CodeMatrix& matrix, int y, int first_unit, int end_unit, const int8_t* bytes,
                           int32_t* totals) {
  const uint8_t* low[kVectors];
  const uint8_t* high[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const int lane = y + v * kLanes;
    low[v] = matrix.low + lane / kPlaneLanes * matrix.low_stride + lane % kPlaneLanes * 4;
    high[v] = kBits == 3 ? matrix.high + lane / kPlaneLanes * matrix.high_stride + lane % kPlaneLanes * 4 : nullptr;
  }
  // Unrolled by request: an array that any loop indexes would live in memory.
  I32 sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[r][v] = splat(0);
  }
  for (int unit = first_unit; unit < end_unit; ++unit) {
    U32 codes[kVectors][4];
    for (int v = 0; v < kVectors; ++v) load_codes<kBits>(low[v], high[v], unit, codes[v]);
    dot_unit<kBits == 8, kRows, kVectors>(codes, bytes + unit * kUnit, kMaxSize, sums);
  }
  settle(sums);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(totals + r * kMaxSize + y + v * kLanes, sums[r][v]);
  }
}

// totals[row][y] = sum over the units of code(x, y) * bytes[row][x], for y_begin <= y < y_end. Of 8-bit codes it is
// code - kByteBias. The bytes have been through arrange_rows.
template <int kBits, int kRows>
void multiply(const CodeMatrix& matrix, int y_begin, int y_end, int first_unit, int end_unit, const int8_t* bytes,
              int32_t* totals) {
  // Enough sums to hide the latency of the dot products, and few enough to leave registers for codes. With 16
  // registers (AVX2, which has no dot product instruction) the sums are off the critical path.
  constexpr int kVectors = kRegisters == 16 ? 1 : kRows <= 2 ? 4 : 2;
  int y = y_begin;
  for (; y + kVectors * kLanes <= y_end; y += kVectors * kLanes) {
    multiply_block<kBits, kRows, kVectors>(matrix, y, first_unit, end_unit, bytes, totals);
  }
  for (; y < y_end; y += kLanes) {
    multiply_block<kBits, kRows, 1>(matrix, y, first_unit, end_unit, bytes, totals);
  }
}

using Multiply = void (*)(const CodeMatrix&, int y_begin, int y_end, int first_unit, int end_unit, const int8_t* bytes,
                          int32_t* totals);

template <int kBits>
inline Multiply multiply_for_rows(int rows) {
  constexpr Multiply kByRows[kMaxByteRows] = {multiply<kBits, 1>, multiply<kBits, 2>, multiply<kBits, 3>,
                                              multiply<kBits, 4>, multiply<kBits, 5>, multiply<kBits, 6>,
                                              multiply<kBits, 7>, multiply<kBits, 8>};
  return kByRows[rows - 1];
}

inline Multiply multiply_for(int bits, int rows) {
  switch (bits) {
    case 1:
      return multiply_for_rows<1>(rows);
    case 2:
      return multiply_for_rows<2>(rows);
    case 3:
      return multiply_for_rows<3>(rows);
    case 4:
      return multiply_for_rows<4>(rows);
    default:
      return multiply_for_rows<8>(rows);
  }
}

}  // namespace kvasir::KVASIR_LEVEL
