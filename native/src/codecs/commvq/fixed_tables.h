// Makes the whole-number tables that attention adds keys up from (codecs/commvq/model.h).
//
// Rounding an entry to a multiple of the pair's unit u errs by at most u / 2, with variance u^2 / 12, and a channel of
// a key is the sum of 2 * stages entries. u is the largest sum that a run of stages can reach, over 32767, so shorter
// runs mean less noise and more additions of 32 bits. Runs are as long as they may be with noise of at most kNoise of
// the power of a key whose codes are all equally likely.
//
// What that does to attention: scores with a standard deviation of S get noise of variance kNoise * S^2, which is about
// the normalised error of the output. Exact mode's 1e-6 is kept up to S = 10, far beyond where softmax sees one token
// alone.
#pragma once

#include <cstdint>

#include "base/aligned.h"
#include "codecs/commvq/key_codebook.h"
#include "codecs/commvq/model.h"

namespace kvasir::commvq {

constexpr double kNoise = 1e-8;

class FixedTablesMemory {
 public:
  // Valid as long as this object.
  FixedTables make(const KeyCodebook::Impl& codebook);

 private:
  AlignedArray<int16_t> rows_;
  AlignedArray<float> units_;
};

}  // namespace kvasir::commvq
