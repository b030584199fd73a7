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

// c = A * B. c: columns 8 j .. 8 j + 7 are c[j], as fragments of C are.
__device__ __forceinline__ void multiply_tiles(float (&c)[8][4], uint64_t a, uint64_t b) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, "
      "%5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, "
      "%28, %29, %30, %31}, %32, %33, p, 1, 1, 0, 0; }"
      : "=f"(c[0][0]), "=f"(c[0][1]), "=f"(c[0][2]), "=f"(c[0][3]), "=f"(c[1][0]), "=f"(c[1][1]), "=f"(c[1][2]),
        "=f"(c[1][3]), "=f"(c[2][0]), "=f"(c[2][1]), "=f"(c[2][2]), "=f"(c[2][3]), "=f"(c[3][0]), "=f"(c[3][1]),
        "=f"(c[3][2]), "=f"(c[3][3]), "=f"(c[4][0]), "=f"(c[4][1]), "=f"(c[4][2]), "=f"(c[4][3]), "=f"(c[5][0]),
        "=f"(c[5][1]), "=f"(c[5][2]), "=f"(c[5][3]), "=f"(c[6][0]), "=f"(c[6][1]), "=f"(c[6][2]), "=f"(c[6][3]),
        "=f"(c[7][0]), "=f"(c[7][1]), "=f"(c[7][2]), "=f"(c[7][3])
      : "l"(a), "l"(b));
}

// c += A * B.
__device__ __forceinline__ void add_tiles(float (&c)[8][4], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
      "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, "
      "0, 0;"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
        "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]),
        "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]),
        "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
        "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
      : "l"(a), "l"(b));
}

// The same with A in registers, as fragments of A are, and depth as B's lines; adds.
__device__ __forceinline__ void add_products(float (&c)[8][4], const uint4& a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
      "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, "
      "%35}, %36, 1, 1, 1, 1;"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
        "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]),
        "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]),
        "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
        "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}

// c = A * B. c: columns 8 j .. 8 j + 7 are c[j], as fragments of C are.
__device__ __forceinline__ void multiply_tiles(float (&c)[16][4], uint64_t a, uint64_t b) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%0, %1, %2, %3, %4, "
      "%5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, "
      "%28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
      "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, 0, 0; }"
      : "=f"(c[0][0]), "=f"(c[0][1]), "=f"(c[0][2]), "=f"(c[0][3]), "=f"(c[1][0]), "=f"(c[1][1]), "=f"(c[1][2]),
        "=f"(c[1][3]), "=f"(c[2][0]), "=f"(c[2][1]), "=f"(c[2][2]), "=f"(c[2][3]), "=f"(c[3][0]), "=f"(c[3][1]),
        "=f"(c[3][2]), "=f"(c[3][3]), "=f"(c[4][0]), "=f"(c[4][1]), "=f"(c[4][2]), "=f"(c[4][3]), "=f"(c[5][0]),
        "=f"(c[5][1]), "=f"(c[5][2]), "=f"(c[5][3]), "=f"(c[6][0]), "=f"(c[6][1]), "=f"(c[6][2]), "=f"(c[6][3]),
        "=f"(c[7][0]), "=f"(c[7][1]), "=f"(c[7][2]), "=f"(c[7][3]), "=f"(c[8][0]), "=f"(c[8][1]), "=f"(c[8][2]),
        "=f"(c[8][3]), "=f"(c[9][0]), "=f"(c[9][1]), "=f"(c[9][2]), "=f"(c[9][3]), "=f"(c[10][0]), "=f"(c[10][1]),
        "=f"(c[10][2]), "=f"(c[10][3]), "=f"(c[11][0]), "=f"(c[11][1]), "=f"(c[11][2]), "=f"(c[11][3]), "=f"(c[12][0]),
        "=f"(c[12][1]), "=f"(c[12][2]), "=f"(c[12][3]), "=f"(c[13][0]), "=f"(c[13][1]), "=f"(c[13][2]), "=f"(c[13][3]),
        "=f"(c[14][0]), "=f"(c[14][1]), "=f"(c[14][2]), "=f"(c[14][3]), "=f"(c[15][0]), "=f"(c[15][1]), "=f"(c[15][2]),
        "=f"(c[15][3])
      : "l"(a), "l"(b));
}

// c += A * B.
__device__ __forceinline__ void add_tiles(float (&c)[16][4], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, "
      "%57, %58, %59, %60, %61, %62, %63}, %64, %65, 1, 1, 1, 0, 0;"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
        "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]),
        "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]),
        "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
        "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]),
        "+f"(c[8][3]), "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]), "+f"(c[10][0]), "+f"(c[10][1]),
        "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3]), "+f"(c[12][0]),
        "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3]),
        "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]), "+f"(c[15][0]), "+f"(c[15][1]), "+f"(c[15][2]),
        "+f"(c[15][3])
      : "l"(a), "l"(b));
}

// The same with A in registers, as fragments of A are, and depth as B's lines; adds.
__device__ __forceinline__ void add_products(float (&c)[16][4], const uint4& a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, "
      "%57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
        "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]),
        "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]),
        "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
        "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]),
        "+f"(c[8][3]), "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]), "+f"(c[10][0]), "+f"(c[10][1]),
        "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3]), "+f"(c[12][0]),
        "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3]),
        "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]), "+f"(c[15][0]), "+f"(c[15][1]), "+f"(c[15][2]),
        "+f"(c[15][3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}

}  // namespace kvasir::cuda
