// Which sequences share a launch of fused attention. CUDA is not needed to know.
#include "engine/cuda/fused_group.h"

#include "support/doctest.h"

using namespace kvasir::cuda;

TEST_CASE("fused groups: rows") {
  FusedGroup group;
  CHECK(group.takes(kMostFusedRows - 1, 1, 1));
  CHECK(group.takes(1, 1, 1));
  CHECK_FALSE(group.takes(1, 1, 1));
  CHECK_FALSE(group.takes(0, 1, 1));
}

TEST_CASE("fused groups: forks of a long prefix with guesses are more units than 32 bits count") {
  constexpr int64_t kPages = 8192;  // a million tokens
  FusedGroup group;
  int sequences = 0;
  while (group.takes(64, kPages, 64)) ++sequences;
  CHECK(sequences * 64 * kPages * 64 <= kMostFusedUnits);
  CHECK((sequences + 1) * 64 * kPages * 64 > kMostFusedUnits);
  CHECK(sequences == 32);
}
