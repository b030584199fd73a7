#include "kernels/cuda/attend/instance.cuh"

const kvasir::cuda::DecodeInstance kvasir::cuda::decode_128_8 = InstanceOf<128, 2>::value;
