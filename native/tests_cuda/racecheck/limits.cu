// How far racecheck can be believed, in two kernels of a page each, over the primitives that the attention kernels use.
//
// compute-sanitizer's racecheck reports hazards in the fused decode kernel (attend/) and in CommVQ's value kernel
// (commvq/values/values.cu). Both are ordered, by these means:
//
//   bulk_ring        A producer starts a bulk copy into a slot of shared memory, which completes on the mbarrier
//                    `full`; consumers wait for its phase, read, and arrive on `empty`; the producer waits for that
//                    phase before it starts the next copy into the slot. The copy's writes are made visible to whoever
//                    observes the phase of `full` complete, because complete_tx is a release and try_wait an acquire
//                    (PTX ISA, "mbarrier"); reads precede the next copy by the arrive (release) and wait (acquire) on
//                    `empty`. That is the ring of attend/ring.cuh, slot for slot. racecheck of CUDA 13.0 reports it,
//                    hundreds of thousands of times: it does not follow bulk copies.
//   pairs_and_all    Warps that make pages and warps that read them meet at one barrier, bar.sync ID, COUNT, with all
//                    threads of the block, once a round: pages change places there, so a page is written a round
//                    before it is read, and written again after the meeting that follows its last read. That is
//                    meet() of commvq/values/values.cu. Makers also meet in pairs, at barriers of their own; those
//                    of the value kernel meet all together, once, when the first page's scores are there. bar.sync
//                    orders the accesses of the threads that take part, whatever other barriers some of them have been
//                    at. racecheck reports the kernel; without the meetings of pairs the same kernel is not reported.
//                    So it takes the barriers of a part of the block for what they are not.
//
// Code for less than sm_90 has no bulk copies: bulk_ring is left out there, and said to be.
//
// Both check what they read, a million times over, and fail where a read is out of order. Controls: with --broken the
// ring's producer waits for no `empty` and its consumers for no `full`, and makers and readers do not meet; then words
// must be wrong.
//
//   limits            runs both, says "ok" for each, or "skipped"
//   limits --broken   both must be seen to fail
//   limits N          N rounds
//
// ci/test-gpu compiles it, runs it both ways, and runs it under racecheck, which reports both: the day it does not, the
// kernels can be taken in there.
#include <cstdio>
#include <cstring>

#include "kernels/cuda/primitives/barrier.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kSlots = 2;
constexpr int kSlotWords = 256;
constexpr int kConsumers = 3;  // warps
constexpr int kRounds = 20000;

// data: [kSlotWords * rounds], word i holds i. Each consumer warp adds up all words of its slots; wrong counts words
// that were not those of the round.
__global__ void bulk_ring(const uint32_t* data, int rounds, bool broken, unsigned long long* wrong) {
  __shared__ __align__(128) uint32_t slots[kSlots][kSlotWords];
  __shared__ uint64_t full[kSlots], empty[kSlots];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kSlots; ++s) {
      barrier_init(shared_address(&full[s]), 1);
      barrier_init(shared_address(&empty[s]), kConsumers);
    }
    fence_barrier_inits();
  }
  __syncthreads();
  if (warp == kConsumers) {
    if (lane != 0) return;
    for (int round = 0; round < rounds; ++round) {
      const int s = round % kSlots, turn = round / kSlots;
      // Broken, it waits for its own copy alone: phases of a barrier must not run into each other.
      if (turn > 0) barrier_wait(shared_address(broken ? &full[s] : &empty[s]), (turn - 1) & 1);
      barrier_expect(shared_address(&full[s]), sizeof slots[s]);
      bulk_copy(shared_address(slots[s]), reinterpret_cast<const uint8_t*>(data + round * kSlotWords), sizeof slots[s],
                shared_address(&full[s]), evict_first());
    }
    return;
  }
  unsigned long long bad = 0;
  for (int round = 0; round < rounds; ++round) {
    const int s = round % kSlots, turn = round / kSlots;
    if (!broken) barrier_wait(shared_address(&full[s]), turn & 1);
    for (int i = lane; i < kSlotWords; i += 32) bad += slots[s][i] != static_cast<uint32_t>(round * kSlotWords + i);
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&empty[s]));
  }
  if (bad != 0) atomicAdd(wrong, bad);
}

constexpr int kRole = 4;  // warps that make pages, and as many that read them

// Word i of the page of a round.
__device__ uint32_t word_of(int round, int i) { return static_cast<uint32_t>(round * kSlotWords + i); }

__global__ void pairs_and_all(int rounds, bool broken, unsigned long long* wrong) {
  __shared__ volatile uint32_t pages[2][kSlotWords];
  __shared__ volatile uint32_t seen[2][kRole];  // what makers tell the other one of their pair
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = threadIdx.x % (32 * kRole);
  const auto meet = [&] {
    if (!broken) sync_threads(kRole / 2 + 1, 2 * 32 * kRole);
  };
  unsigned long long bad = 0;
  if (warp < kRole) {
    const auto make = [&](int round) {
      if (lane == 0) seen[round % 2][warp] = round;
      sync_threads(1 + warp / 2, 64);
      bad += seen[round % 2][warp ^ 1] != static_cast<uint32_t>(round);
      for (int i = first; i < kSlotWords; i += 32 * kRole) pages[round % 2][i] = word_of(round, i);
    };
    make(0);
    for (int round = 0; round < rounds; ++round) {
      meet();
      make(round + 1);
    }
  } else {
    for (int round = 0; round < rounds; ++round) {
      meet();
      for (int i = first; i < kSlotWords; i += 32 * kRole) {
        const int other = (i + 31) % kSlotWords;  // mostly of another warp
        bad += pages[round % 2][other] != word_of(round, other);
      }
    }
  }
  if (bad != 0) atomicAdd(wrong, bad);
}

__global__ void count_up(uint32_t* data, int words) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x) data[i] = i;
}

int failures = 0;

// Waits for the kernel before and says whether it read what it should.
void judge(const char* name, unsigned long long* wrong, bool broken) {
  const cudaError_t error = cudaDeviceSynchronize();
  unsigned long long count = 0;
  cudaMemcpy(&count, wrong, sizeof count, cudaMemcpyDeviceToHost);
  cudaMemset(wrong, 0, sizeof count);
  const bool right = error == cudaSuccess && (count != 0) == broken;
  std::printf("%-7s %s: %llu words out of order, %s\n", right ? "ok" : "FAILED", name, count, cudaGetErrorName(error));
  failures += right ? 0 : 1;
}

}  // namespace
}  // namespace kvasir::cuda

int main(int argc, char** argv) {
  using namespace kvasir::cuda;
  const bool broken = argc > 1 && std::strcmp(argv[1], "--broken") == 0;
  const int rounds = argc > 1 && !broken ? std::atoi(argv[1]) : kRounds;
  uint32_t* data = nullptr;
  unsigned long long* wrong = nullptr;
  const size_t words = static_cast<size_t>(rounds) * kSlotWords;
  if (cudaMalloc(&data, words * sizeof *data) != cudaSuccess || cudaMalloc(&wrong, sizeof *wrong) != cudaSuccess) {
    std::printf("FAILED  no memory on a device\n");
    return 1;
  }
  cudaMemset(wrong, 0, sizeof *wrong);
  count_up<<<64, 256>>>(data, static_cast<int>(words));
  cudaFuncAttributes compiled = {};
  if (cudaFuncGetAttributes(&compiled, bulk_ring) == cudaSuccess && compiled.ptxVersion < 90) {
    std::printf("skipped bulk_ring: code for sm_%d has no bulk copies\n", compiled.ptxVersion);
  } else {
    bulk_ring<<<16, 32 * (kConsumers + 1)>>>(data, rounds, broken, wrong);
    judge("bulk_ring", wrong, broken);
  }
  pairs_and_all<<<16, 2 * 32 * kRole>>>(rounds, broken, wrong);
  judge("pairs_and_all", wrong, broken);
  return failures == 0 ? 0 : 1;
}
