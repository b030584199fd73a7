// Linear equations with a Hermitian matrix, as the fit of a key table needs them.
#pragma once

#include <complex>
#include <vector>

namespace kvasir::commvq {

// Solves H X = B in place of B. matrix: [count][count], Hermitian and positive semi-definite, overwritten; rhs:
// [count][columns]. Unknowns that the matrix says nothing about come out as 0.
void solve_hermitian(int count, std::vector<std::complex<double>>& matrix, int columns,
                     std::vector<std::complex<double>>& rhs);

}  // namespace kvasir::commvq
