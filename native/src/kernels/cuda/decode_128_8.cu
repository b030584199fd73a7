#include "kernels/cuda/decode_instance.cuh"

const kvasir::cuda::DecodeInstance kvasir::cuda::decode_128_8 = InstanceOf<128, 2>::value;
