// Launches of kernels whose blocks work in clusters (cluster.cuh).
#pragma once

#include <cuda_runtime.h>

namespace kvasir::cuda {

template <class Params>
struct ClusterLaunch {
  void (*kernel)(Params);
  int blocks;  // of a cluster: 8 at most
  int threads;
  int shared_bytes;

  // Whether the device can run clusters of this kernel: it may be older, or have no processors that belong together.
  bool runs() const {
    const auto* const function = reinterpret_cast<const void*>(kernel);
    cudaLaunchAttribute cluster;
    const cudaLaunchConfig_t config = configured(1, blocks, &cluster, nullptr);
    cudaFuncAttributes compiled;
    int clusters = 0;
    const bool known =
        cudaFuncGetAttributes(&compiled, function) == cudaSuccess &&
        (compiled.ptxVersion < 90 || cudaOccupancyMaxActiveClusters(&clusters, function, &config) == cudaSuccess);
    if (!known) cudaGetLastError();  // which is an answer, and nobody's error
    return clusters > 0;
  }

  // So many clusters; of one block each unless `together`.
  cudaError_t operator()(unsigned clusters, bool together, const Params& params, cudaStream_t stream) const {
    cudaLaunchAttribute cluster;
    const cudaLaunchConfig_t config = configured(clusters, together ? blocks : 1, &cluster, stream);
    return cudaLaunchKernelEx(&config, kernel, params);
  }

 private:
  cudaLaunchConfig_t configured(unsigned clusters, unsigned size, cudaLaunchAttribute* cluster,
                                cudaStream_t stream) const {
    *cluster = {};
    cluster->id = cudaLaunchAttributeClusterDimension;
    cluster->val.clusterDim = {size, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(clusters * size);
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = stream;
    config.attrs = cluster;
    config.numAttrs = size > 1 ? 1 : 0;
    return config;
  }
};

}  // namespace kvasir::cuda
