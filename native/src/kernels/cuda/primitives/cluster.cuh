// Blocks of a cluster run at once on processors that belong together, meet at a barrier of their own and write to each
// other's shared memory: sm_90 and up. Below, and in launches without the attribute (cluster_launch.h), a block is a
// cluster by itself.
#pragma once

#include <cstdint>

namespace kvasir::cuda {

struct ClusterPlace {
  int blocks;  // of this cluster
  int rank;    // of this block
};

__device__ __forceinline__ ClusterPlace cluster_place() {
  ClusterPlace place = {1, 0};
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(place.blocks));
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(place.rank));
#endif
  return place;
}

// All threads of the cluster. What they have written, to shared memory of any block or to global, the others see.
__device__ __forceinline__ void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

// The same place in the shared memory of block `rank` of the cluster, which must have begun, and not ended.
template <class T>
__device__ __forceinline__ T* of_block(T* place, int rank) {
#if __CUDA_ARCH__ >= 900
  asm("mapa.u64 %0, %1, %2;" : "=l"(place) : "l"(place), "r"(rank));
#endif
  return place;
}

}  // namespace kvasir::cuda
