// In place of engine/cuda where that is not built.
#include "engine/engines.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

std::string obstacle() { return "this library was built without CUDA; those for GPUs have a -gpu classifier"; }

std::unique_ptr<Engine> make() { throw Error(ErrorCode::kUnavailable, obstacle()); }

}  // namespace

const DeviceKind& cuda_device() {
  static const DeviceKind kind = {"cuda", "NVIDIA GPUs, from compute capability 8.0 on", obstacle, make};
  return kind;
}

}  // namespace kvasir
