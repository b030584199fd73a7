// Products of a warp group, on Hopper alone (sm_90a): 64 rows by kColumns, 16 deep, of float16, summed in float32.
//
// Operands in shared memory are tiles whose lines are 128 bytes, 64 elements, of which eight 16-byte pieces change
// places from line to line: piece p of line r stands at p ^ r % 8 (swizzle_128). Tiles begin at multiples of 1024
// bytes. A is rows by depth; B is columns by depth (kDepthLines = false: lines are columns), or depth by columns (true:
// lines are depth, and each 64 columns have lines of their own).
#pragma once

#include <cstdint>

namespace kvasir::cuda {

// Where piece `piece` (16 bytes) of a line is, from where the tile begins.
__device__ __forceinline__ constexpr uint32_t swizzle_128(int line, int piece) {
  return line * 128 + ((piece ^ (line % 8)) << 4);
}

// columns_apart: bytes from one 64 columns to the next, where lines are depth; else of no matter.
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address, uint32_t columns_apart = 16) {
  constexpr uint64_t kEightLines = 1024, kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | (kEightLines >> 4) << 32 | static_cast<uint64_t>(columns_apart >> 4) << 16 |
         (address & 0x3ffff) >> 4;
}

// What the warps of the group have written to shared memory, or seen others write, is seen by products.
__device__ __forceinline__ void fence_shared_operands() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Before products that take registers which were written to since the last ones.
__device__ __forceinline__ void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// After waiting for products whose sums are read then. The compiler takes sums for complete where the product stands,
// and would read them before the wait.
template <int kTiles>
__device__ __forceinline__ void fence_sums(float (&c)[kTiles][4]) {
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    asm volatile("" : "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])::"memory");
  }
}

// A warp group that needs more registers than it was launched with takes what others leave. Multiples of 8.
template <int kMore>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMore));
}
template <int kFewer>
__device__ __forceinline__ void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kFewer));
}

// c holds columns 8 j .. 8 j + 7 at c[j], as fragments of C are. Operands of instructions are lists:
#define KVASIR_FOUR(mode, c, j) mode(c[j][0]), mode(c[j][1]), mode(c[j][2]), mode(c[j][3])
#define KVASIR_EIGHT(mode, c, j) KVASIR_FOUR(mode, c, j), KVASIR_FOUR(mode, c, j + 1)
#define KVASIR_COLUMNS_32(mode, c) KVASIR_EIGHT(mode, c, 0), KVASIR_EIGHT(mode, c, 2)
#define KVASIR_COLUMNS_48(mode, c) KVASIR_COLUMNS_32(mode, c), KVASIR_EIGHT(mode, c, 4)
#define KVASIR_COLUMNS_64(mode, c) KVASIR_COLUMNS_48(mode, c), KVASIR_EIGHT(mode, c, 6)
#define KVASIR_COLUMNS_80(mode, c) KVASIR_COLUMNS_64(mode, c), KVASIR_EIGHT(mode, c, 8)
#define KVASIR_COLUMNS_96(mode, c) KVASIR_COLUMNS_80(mode, c), KVASIR_EIGHT(mode, c, 10)
#define KVASIR_COLUMNS_112(mode, c) KVASIR_COLUMNS_96(mode, c), KVASIR_EIGHT(mode, c, 12)
#define KVASIR_COLUMNS_128(mode, c) KVASIR_COLUMNS_112(mode, c), KVASIR_EIGHT(mode, c, 14)
#define KVASIR_NAMES_32 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define KVASIR_NAMES_48 KVASIR_NAMES_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define KVASIR_NAMES_64 KVASIR_NAMES_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define KVASIR_NAMES_80 KVASIR_NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define KVASIR_NAMES_96 KVASIR_NAMES_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define KVASIR_NAMES_112 KVASIR_NAMES_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define KVASIR_NAMES_128 KVASIR_NAMES_112 ", %56, %57, %58, %59, %60, %61, %62, %63"

// add_products: c += A * B with A in registers, as fragments of A are, and depth as B's lines. B's lines are 64 columns
// wide whatever their number: of the last ones products read what they need. `operands`: those after c.
#define KVASIR_ADD_PRODUCTS(columns, operands)                                                          \
  __device__ __forceinline__ void add_products(float(&c)[columns / 8][4], const uint4& a, uint64_t b) { \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.f16.f16 " KVASIR_NAMES_##columns \
                 "}, " operands ", 1, 1, 1, 1;"                                                         \
                 : KVASIR_COLUMNS_##columns("+f", c)                                                    \
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));                                     \
  }
KVASIR_ADD_PRODUCTS(32, "{%16, %17, %18, %19}, %20")
KVASIR_ADD_PRODUCTS(48, "{%24, %25, %26, %27}, %28")
KVASIR_ADD_PRODUCTS(64, "{%32, %33, %34, %35}, %36")
KVASIR_ADD_PRODUCTS(80, "{%40, %41, %42, %43}, %44")
KVASIR_ADD_PRODUCTS(96, "{%48, %49, %50, %51}, %52")
KVASIR_ADD_PRODUCTS(112, "{%56, %57, %58, %59}, %60")
KVASIR_ADD_PRODUCTS(128, "{%64, %65, %66, %67}, %68")
#undef KVASIR_ADD_PRODUCTS

// The same with both in shared memory, where `operands` are: multiply_tiles c = A * B, add_tiles c += A * B.
#define KVASIR_TILES(columns, operands)                                                                 \
  __device__ __forceinline__ void multiply_tiles(float(&c)[columns / 8][4], uint64_t a, uint64_t b) {   \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n" #columns      \
                 "k16.f32.f16.f16 " KVASIR_NAMES_##columns "}, " operands ", p, 1, 1, 0, 0; }"          \
                 : KVASIR_COLUMNS_##columns("=f", c)                                                    \
                 : "l"(a), "l"(b));                                                                     \
  }                                                                                                     \
  __device__ __forceinline__ void add_tiles(float(&c)[columns / 8][4], uint64_t a, uint64_t b) {        \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.f16.f16 " KVASIR_NAMES_##columns \
                 "}, " operands ", 1, 1, 1, 0, 0;"                                                      \
                 : KVASIR_COLUMNS_##columns("+f", c)                                                    \
                 : "l"(a), "l"(b));                                                                     \
  }
KVASIR_TILES(64, "%32, %33")
KVASIR_TILES(128, "%64, %65")
#undef KVASIR_TILES

// add_columns: as add_products, with columns as B's lines; 32 of them.
__device__ __forceinline__ void add_columns(float (&c)[4][4], const uint4& a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 " KVASIR_NAMES_32
               "}, {%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
               : KVASIR_COLUMNS_32("+f", c)
               : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}
#undef KVASIR_NAMES_128
#undef KVASIR_NAMES_112
#undef KVASIR_NAMES_96
#undef KVASIR_NAMES_80
#undef KVASIR_NAMES_64
#undef KVASIR_NAMES_48
#undef KVASIR_NAMES_32
#undef KVASIR_COLUMNS_128
#undef KVASIR_COLUMNS_112
#undef KVASIR_COLUMNS_96
#undef KVASIR_COLUMNS_80
#undef KVASIR_COLUMNS_64
#undef KVASIR_COLUMNS_48
#undef KVASIR_COLUMNS_32
#undef KVASIR_EIGHT
#undef KVASIR_FOUR

}  // namespace kvasir::cuda
