#include "kernels/cuda/attend/instance.cuh"

const kvasir::cuda::DecodeInstance kvasir::cuda::decode_64_4 = InstanceOf<64, 1>::value;
