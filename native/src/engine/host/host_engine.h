// The engine of this machine: plain memory, the kernels of one backend of kernels.h, the library's threads.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace kvasir {

// `backend`: number in the ladder of kernels.h.
std::unique_ptr<Engine> make_host_engine(int backend);

}  // namespace kvasir
