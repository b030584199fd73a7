#include "kernels/cuda/attend/instance.cuh"

const kvasir::cuda::DecodeInstance kvasir::cuda::decode_96_4 = InstanceOf<96, 1>::value;
