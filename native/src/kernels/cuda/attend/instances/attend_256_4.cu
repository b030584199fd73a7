#include "kernels/cuda/attend/instance.cuh"

const kvasir::cuda::DecodeInstance kvasir::cuda::decode_256_4 = InstanceOf<256, 1>::value;
