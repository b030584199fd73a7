// In place of device_operations.cc where there is no CUDA.
#include "kvasir/device_model.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

[[noreturn]] void unavailable() {
  throw Error(ErrorCode::kUnavailable, "this library was built without CUDA; those for GPUs have a -gpu classifier");
}

}  // namespace

void device_embed(const void*, int64_t, const void*, int64_t, void*, void*) { unavailable(); }

void device_gather(const void*, const void*, int64_t, int64_t, void*, void*) { unavailable(); }

void device_rms_norm(const void*, const void*, double, int64_t, int64_t, Precision, void*, void*) { unavailable(); }

void device_add(const void*, const void*, void*, const void*, double, int64_t, int64_t, Precision, void*, void*) {
  unavailable();
}

void device_rope_turns(const void*, int, double, const void*, int64_t, void*, void*) { unavailable(); }

void device_heads(const void*, const void*, const void*, const void*, double, const void*, int64_t, int, int, int,
                  RopePairs, bool, Precision, void*, void*, void*, void*) {
  unavailable();
}

void device_swiglu(const void*, const void*, int64_t, int64_t, Precision, void*, void*) { unavailable(); }

void device_to_product(const void*, int64_t, int64_t, Precision, void*, void*) { unavailable(); }

void device_from_product(const void*, int64_t, int64_t, Precision, void*, void*) { unavailable(); }

void device_argmax(const void*, int64_t, int64_t, void*, void*) { unavailable(); }

void device_random(uint64_t, double, int64_t, ElementType, void*, void*) { unavailable(); }

}  // namespace kvasir
