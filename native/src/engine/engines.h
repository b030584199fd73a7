// The engines that a cache may have, by the names of backend.h.
#pragma once

#include <memory>
#include <string>

#include "engine/engine.h"

namespace kvasir {

// An engine with a device. One that was not built is there, too, to say so.
struct DeviceKind {
  const char* name;
  const char* summary;
  // Why it cannot run here; empty where it can.
  std::string (*obstacle)();
  std::unique_ptr<Engine> (*make)();
};
const DeviceKind& cuda_device();

struct ChosenEngine {
  std::unique_ptr<Engine> engine;
  int kernels;  // of this machine, that it has beside: a number in the ladder of kernels.h
};
// Throws kInvalidArgument for unknown names and kUnavailable, with the reason, for those that cannot run here.
ChosenEngine make_engine(const std::string& backend);

}  // namespace kvasir
