#include "kernels/cuda/attend/instance.cuh"

const kvasir::cuda::AttendInstance kvasir::cuda::attend_128_8 = InstanceOf<128, 2>::value;
