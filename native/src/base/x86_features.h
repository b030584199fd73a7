// What an x86-64 processor says that it can do, where __builtin_cpu_supports does not know the name in every compiler that the
// project is built with: clang 14 knows none of these. Whether the operating system keeps their registers is not asked here.
#pragma once

namespace kvasir::x86 {

bool has_half_conversions();  // f16c
bool has_tiles();             // amx-tile, with amx-int8 and amx-bf16

}  // namespace kvasir::x86
