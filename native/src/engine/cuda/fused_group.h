// How many query rows one launch of fused attention takes.
#pragma once

#include <cstdint>

namespace kvasir::cuda {

constexpr int64_t kMostFusedRows = 4096;
// Kernels count the units of a launch, pages and tiles of 16-bit rows of all heads and rows, in 32 bits
// (kernels/cuda/attend/work.cuh), and divide them through floats.
constexpr int64_t kMostFusedUnits = int64_t{1} << 30;

class FusedGroup {
 public:
  // Whether a sequence with so many query rows, each of which sees so many units of a head, still goes along. After one
  // that does not, none does.
  bool takes(int64_t rows, int64_t units, int heads) {
    rows_ += rows;
    units_ += rows * units * heads;
    return rows_ <= kMostFusedRows && units_ <= kMostFusedUnits;
  }

 private:
  int64_t rows_ = 0, units_ = 0;
};

}  // namespace kvasir::cuda
