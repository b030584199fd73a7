#include "kernels/cuda/attend/instance.cuh"

const kvasir::cuda::AttendInstance kvasir::cuda::attend_256_4 = InstanceOf<256, 1>::value;
