// What the codes of a part count, in parts of their group's range: uniform::Codes for those who multiply ranges.
#pragma once

#include "codecs/uniform/formula.h"
#include "kernels/cuda/layout/fragments.h"

namespace kvasir::cuda {

struct CodeUnit {
  float step;    // from one code to the next
  float centre;  // what code 0 is above lo
};

// bits: as in PartLayout. cells: as in HeadLayout.
KVASIR_HOST_DEVICE constexpr CodeUnit code_unit(int bits, bool cells) {
  const uniform::Codes codes = uniform::codes_of(bits == kWideBits ? 16 : bits, cells ? Grid::kCells : Grid::kEnds);
  return {1.0f / codes.steps, codes.centre / codes.steps};
}

}  // namespace kvasir::cuda
