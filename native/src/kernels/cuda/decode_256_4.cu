#include "kernels/cuda/decode_instance.cuh"

const kvasir::cuda::DecodeInstance kvasir::cuda::decode_256_4 = InstanceOf<256, 1>::value;
