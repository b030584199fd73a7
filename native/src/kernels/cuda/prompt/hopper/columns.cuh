// add_products of wgmma.cuh for head dims between 64 and 128, and below 64: as many columns as there are channels.
//
// B's lines are 64 columns wide whatever their number: of the last lines products read what they need.
#pragma once

#include "kernels/cuda/primitives/wgmma.cuh"

namespace kvasir::cuda {

// Operands of instructions are lists. c holds columns 8 j .. 8 j + 7 at c[j]: eight registers are 16 columns.
#define KVASIR_EIGHT(c, j)                                                                                             \
  "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3]), "+f"(c[j + 1][0]), "+f"(c[j + 1][1]), "+f"(c[j + 1][2]), \
      "+f"(c[j + 1][3])
#define KVASIR_COLUMNS_32(c) KVASIR_EIGHT(c, 0), KVASIR_EIGHT(c, 2)
#define KVASIR_COLUMNS_48(c) KVASIR_COLUMNS_32(c), KVASIR_EIGHT(c, 4)
#define KVASIR_COLUMNS_80(c) KVASIR_COLUMNS_48(c), KVASIR_EIGHT(c, 6), KVASIR_EIGHT(c, 8)
#define KVASIR_COLUMNS_96(c) KVASIR_COLUMNS_80(c), KVASIR_EIGHT(c, 10)
#define KVASIR_COLUMNS_112(c) KVASIR_COLUMNS_96(c), KVASIR_EIGHT(c, 12)
#define KVASIR_NAMES_32 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define KVASIR_NAMES_48 KVASIR_NAMES_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define KVASIR_NAMES_80 \
  KVASIR_NAMES_48 ", %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39"
#define KVASIR_NAMES_96 KVASIR_NAMES_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define KVASIR_NAMES_112 KVASIR_NAMES_96 ", %48, %49, %50, %51, %52, %53, %54, %55"

#define KVASIR_ADD_PRODUCTS(columns, operands)                                                          \
  __device__ __forceinline__ void add_products(float(&c)[columns / 8][4], const uint4& a, uint64_t b) { \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.f16.f16 " KVASIR_NAMES_##columns \
                 "}, " operands ", 1, 1, 1, 1;"                                                         \
                 : KVASIR_COLUMNS_##columns(c)                                                          \
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));                                     \
  }
KVASIR_ADD_PRODUCTS(32, "{%16, %17, %18, %19}, %20")
KVASIR_ADD_PRODUCTS(48, "{%24, %25, %26, %27}, %28")
KVASIR_ADD_PRODUCTS(80, "{%40, %41, %42, %43}, %44")
KVASIR_ADD_PRODUCTS(96, "{%48, %49, %50, %51}, %52")
KVASIR_ADD_PRODUCTS(112, "{%56, %57, %58, %59}, %60")
#undef KVASIR_ADD_PRODUCTS
#undef KVASIR_NAMES_112
#undef KVASIR_NAMES_96
#undef KVASIR_NAMES_80
#undef KVASIR_NAMES_48
#undef KVASIR_NAMES_32
#undef KVASIR_COLUMNS_112
#undef KVASIR_COLUMNS_96
#undef KVASIR_COLUMNS_80
#undef KVASIR_COLUMNS_48
#undef KVASIR_COLUMNS_32
#undef KVASIR_EIGHT

}  // namespace kvasir::cuda
