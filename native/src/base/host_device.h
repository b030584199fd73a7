// KVASIR_HOST_DEVICE marks arithmetic that CPU and CUDA kernels share.
#pragma once

#ifdef __CUDACC__
#define KVASIR_HOST_DEVICE __host__ __device__
#else
#define KVASIR_HOST_DEVICE
#endif
