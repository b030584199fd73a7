// What the processor can do beyond the least of its kind, where compilers do not agree on how to ask. Vector
// instructions of x86-64 are not here: __builtin_cpu_supports knows them everywhere, and whether the system keeps their
// registers.
#pragma once

namespace kvasir::processor {

bool has_crc();                  // Castagnoli's: sse4.2, crc
bool has_polynomial_products();  // pclmul, pmull

#if defined(__aarch64__)
bool has_dot_products();     // asimddp
bool has_matrix_products();  // i8mm
#elif defined(__x86_64__)
bool has_half_conversions();  // f16c
bool has_tiles();             // amx-tile, with amx-int8 and amx-bf16; a process has to ask the system for their memory
#endif

}  // namespace kvasir::processor
