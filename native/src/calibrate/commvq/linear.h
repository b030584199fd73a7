// Dense linear algebra of the size that codebooks need: hundreds to thousands of unknowns, in double.
#pragma once

#include <cstdint>
#include <vector>

namespace kvasir::commvq {

// out[n][m] = in[m][n].
void transpose(const float* in, int64_t rows, int64_t columns, float* out);

// Solves A X = B in place of B. a: [count][count], symmetric and positive definite, of which the upper triangle is read
// and overwritten; b: [count][columns]. Unknowns whose pivots drown in rounding come out as 0.
void solve_symmetric(int count, std::vector<double>& a, int columns, std::vector<double>& b);

// Eigenvalues, largest first, and eigenvectors as the rows of `vectors`. a: [count][count], symmetric.
void eigenvectors(int count, std::vector<double> a, std::vector<double>& values, std::vector<double>& vectors);

}  // namespace kvasir::commvq
