#include "kernels/cuda/decode_instance.cuh"

const kvasir::cuda::DecodeInstance kvasir::cuda::decode_64_4 = InstanceOf<64, 1>::value;
