// What an AArch64 processor can do beyond the least of them, as its operating system tells.
#pragma once

namespace kvasir::arm {

bool has_crc();
bool has_polynomial_products();  // pmull
bool has_dot_products();         // asimddp
bool has_matrix_products();      // i8mm

}  // namespace kvasir::arm
