// Rounding by addition: whole numbers without an instruction that converts.
#pragma once

namespace kvasir::cuda {

// Added to a number of magnitude below 2^22 it leaves the nearest whole number, ties to even, in the low bits of the
// sum.
constexpr float kRoundingBias = 12582912.0f;   // 1.5 * 2^23
constexpr int kRoundingBiasBits = 0x4b400000;  // the same as bits: whole numbers added to them need no rounding
// The same for magnitudes below 2^51.
constexpr double kRoundingBiasDouble = 6755399441055744.0;  // 1.5 * 2^52

}  // namespace kvasir::cuda
