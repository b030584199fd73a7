#include "kernels/cuda/attend/instance.cuh"

const kvasir::cuda::AttendInstance kvasir::cuda::attend_96_4 = InstanceOf<96, 1>::value;
