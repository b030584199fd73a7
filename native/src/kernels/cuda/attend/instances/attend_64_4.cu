#include "kernels/cuda/attend/instance.cuh"

const kvasir::cuda::AttendInstance kvasir::cuda::attend_64_4 = InstanceOf<64, 1>::value;
