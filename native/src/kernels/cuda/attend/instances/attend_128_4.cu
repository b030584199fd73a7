#include "kernels/cuda/attend/instance.cuh"

const kvasir::cuda::AttendInstance kvasir::cuda::attend_128_4 = InstanceOf<128, 1>::value;
