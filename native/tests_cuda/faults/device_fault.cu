#include "faults/device_fault.h"

namespace kvasir_faults {
namespace {

__global__ void trap() { asm volatile("trap;"); }

}  // namespace

cudaError_t break_device() {
  trap<<<1, 1>>>();
  return cudaDeviceSynchronize();
}

}  // namespace kvasir_faults

// As a library that a JVM loads (System.load): it breaks the device under the JVM's feet. 0x00010008: JNI_VERSION_1_8.
extern "C" __attribute__((visibility("default"))) int JNI_OnLoad(void*, void*) {
  return kvasir_faults::break_device() == cudaSuccess ? -1 : 0x00010008;
}
