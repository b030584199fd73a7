// Times launches: a graph of them is replayed and timed with events; the figure is the median over replays.
#pragma once

#include <algorithm>
#include <vector>

#include "device_memory.h"

namespace bench {

struct Timing {
  double us;      // of one launch, median
  double spread;  // (90th - 10th percentile) / median
};

// Microseconds between two events around `work`.
template <class Work>
double time_once(cudaStream_t stream, const Work& work) {
  cudaEvent_t begin, end;
  CUDA(cudaEventCreate(&begin));
  CUDA(cudaEventCreate(&end));
  CUDA(cudaEventRecord(begin, stream));
  work();
  CUDA(cudaEventRecord(end, stream));
  CUDA(cudaEventSynchronize(end));
  float ms = 0;
  CUDA(cudaEventElapsedTime(&ms, begin, end));
  CUDA(cudaEventDestroy(begin));
  CUDA(cudaEventDestroy(end));
  return 1000.0 * ms;
}

// launch(i, stream): the i-th of `launches` in a graph. The first replays, `warm_up` of them, do not count.
template <class Launch>
Timing time_graph(int launches, int replays, int warm_up, const Launch& launch) {
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < launches; ++i) launch(i, stream);
  cudaGraph_t graph;
  CUDA(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec;
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  std::vector<double> times;
  for (int i = 0; i < replays; ++i) {
    const double us = time_once(stream, [&] { CUDA(cudaGraphLaunch(exec, stream)); }) / launches;
    if (i >= warm_up) times.push_back(us);
  }
  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaStreamDestroy(stream));
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  return {median, (times[times.size() * 9 / 10] - times[times.size() / 10]) / median};
}

// As many launches as take some milliseconds. Those after each other should read different memory.
template <class Launch>
Timing time_launches(const Launch& launch) {
  for (int i = 0; i < 3; ++i) launch(i, nullptr);
  const double once = time_once(nullptr, [&] { launch(0, nullptr); });
  return time_graph(std::clamp(static_cast<int>(3000.0 / once), 4, 200), 25, 4, launch);
}

}  // namespace bench
