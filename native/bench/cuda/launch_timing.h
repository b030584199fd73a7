// Times launches: a graph of them is replayed and timed with events; the figure is the median over replays.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CUDA(call)                                                                                    \
  do {                                                                                                \
    const cudaError_t status = (call);                                                                \
    if (status != cudaSuccess) {                                                                      \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status)); \
      std::exit(3);                                                                                   \
    }                                                                                                 \
  } while (false)

namespace bench {

struct Timing {
  double us;      // of one launch, median
  double spread;  // (90th - 10th percentile) / median
};

// launch(i, stream): the i-th launch; those after each other should read different memory.
template <class Launch>
Timing time_launches(Launch launch) {
  cudaStream_t stream;
  cudaEvent_t begin, end;
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaEventCreate(&begin));
  CUDA(cudaEventCreate(&end));
  const auto timed = [&](auto work) {
    CUDA(cudaEventRecord(begin, stream));
    work();
    CUDA(cudaEventRecord(end, stream));
    CUDA(cudaEventSynchronize(end));
    float ms = 0;
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    return 1000.0 * ms;
  };
  for (int i = 0; i < 3; ++i) launch(i, stream);
  const double once = timed([&] { launch(0, stream); });
  const int launches = std::clamp(static_cast<int>(3000.0 / once), 4, 200);
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < launches; ++i) launch(i, stream);
  cudaGraph_t graph;
  CUDA(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec;
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  std::vector<double> times;
  for (int i = 0; i < 25; ++i) {
    const double us = timed([&] { CUDA(cudaGraphLaunch(exec, stream)); }) / launches;
    if (i >= 4) times.push_back(us);
  }
  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaEventDestroy(begin));
  CUDA(cudaEventDestroy(end));
  CUDA(cudaStreamDestroy(stream));
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  return {median, (times[times.size() * 9 / 10] - times[times.size() / 10]) / median};
}

}  // namespace bench
