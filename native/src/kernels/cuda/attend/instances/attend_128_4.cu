#include "kernels/cuda/attend/instance.cuh"

const kvasir::cuda::DecodeInstance kvasir::cuda::decode_128_4 = InstanceOf<128, 1>::value;
