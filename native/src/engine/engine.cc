#include "engine/engine.h"

#include <string>

#include "kvasir/error.h"

namespace kvasir {

Engine::Tiles Engine::attend(const LayerPlan&, const AttentionRequest&, const DeviceQueries&) {
  throw Error(ErrorCode::kUnavailable, std::string("backend ") + name() + " has no device memory to attend on");
}

void Engine::add_queries(const LayerPlan&, uint8_t* const*, const std::vector<QueryRun>&, const DeviceQueries&) {
  throw Error(ErrorCode::kUnavailable, std::string("backend ") + name() + " has no device memory to read");
}

std::unique_ptr<Extension> Engine::extend(int, void*) {
  throw Error(ErrorCode::kUnavailable, std::string("backend ") + name() + " has no device, whose graphs write rows");
}

void Engine::capture_append(const LayerPlan&, const TokenRows&, const std::vector<SequenceView>&) {
  throw Error(ErrorCode::kUnavailable, std::string("backend ") + name() + " has no device, whose graphs write rows");
}

}  // namespace kvasir
