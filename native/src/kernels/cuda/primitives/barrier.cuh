// Shared-memory barriers, and copies from global memory that complete on them.
//
// On sm_90 one lane starts a bulk copy and the copy engine does the rest; on sm_80 a whole warp copies 16 bytes a lane.
#pragma once

#include <cstdint>

namespace kvasir::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kBulkCopies = false;
#else
constexpr bool kBulkCopies = true;
#endif

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// After all inits, before the barrier that shows them to other threads.
__device__ __forceinline__ void fence_barrier_inits() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// Waits for so many threads of the block, whole warps, at barrier `id` (1..15).
__device__ __forceinline__ void sync_threads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Programmatic dependent launch: lets the next grid of the stream start when blocks of this one leave, and waits until
// the grids before this one are complete. Without the launch attribute both do nothing.
__device__ __forceinline__ void let_next_grid_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_grids_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier) : "memory");
}

// Whether the phase of this parity has completed. Does not wait.
__device__ __forceinline__ bool barrier_test(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  uint32_t done;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
  } while (done == 0);
#else
  while (!barrier_test(barrier, parity)) {
  }
#endif
}

// Arrives, and makes the phase wait for `bytes` more of bulk copies. 0 bytes: a plain arrival.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(barrier), "r"(bytes)
               : "memory");
#endif
}

// How the L2 cache should treat what a bulk copy reads.
using CachePolicy = uint64_t;

// Pages are read once a step and together are larger than the cache: they should not drive out what is used again, such
// as instructions, page tables and partial states.
__device__ __forceinline__ CachePolicy evict_first() {
  CachePolicy policy = 0;
#if __CUDA_ARCH__ >= 900
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

// All of the first three are multiples of 16.
__device__ __forceinline__ void bulk_copy(uint32_t to, const uint8_t* from, int bytes, uint32_t barrier,
                                          CachePolicy policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
#endif
}

// How many bytes behind `to` a bulk copy had better begin, for both ends of it to lie alike in lines of 128 bytes: one
// that shifts bytes against lines is up to a tenth slower. Of addresses the lower halves.
__device__ __forceinline__ int line_skew(uint32_t to, uint32_t from) { return static_cast<int>(from - to) & 127; }

__device__ __forceinline__ void copy16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
}

// 16 bytes to registers, of what no grid writes to meanwhile.
__device__ __forceinline__ uint4 load16(const void* from, CachePolicy policy) {
#if __CUDA_ARCH__ >= 900
  uint4 words;
  asm("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
      : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
      : "l"(__cvta_generic_to_global(from)), "l"(policy));
  return words;
#else
  return __ldg(static_cast<const uint4*>(from));
#endif
}

// Brings the 128 bytes around `from` to the second cache.
__device__ __forceinline__ void prefetch(const uint8_t* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from)));
}

// Makes a group of this thread's copies since the last one.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for all groups of copies of this thread but the newest kPending.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Waits for all copies of this thread.
__device__ __forceinline__ void wait_all_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Arrives when all copy16 of this thread so far are complete.
__device__ __forceinline__ void barrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// A position that goes round a ring, and the parity that barriers of its slots have by then.
struct RingPosition {
  int slot = 0;
  uint32_t parity = 0;
  __device__ void advance(int slots) {
    if (++slot == slots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

}  // namespace kvasir::cuda
