#include "engine/engine.h"

#include <cstring>
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

void Engine::read_page(const LayerPlan& plan, const PageView& page, uint8_t* out) {
  const PageShape& shape = *page.shape;
  if (shape.varies()) {
    std::memset(out, 0, shape.table_bytes());
    std::memcpy(out, page.offsets, sizeof(uint32_t) * (shape.parts() + 1));
  }
  for (const Side side : {Side::kKeys, Side::kValues}) {
    const int heads = shape.formats[static_cast<int>(side)].heads;
    for (int head = 0; head < shape.kv_heads; head += heads) {
      std::memcpy(out + page.part_offset(side, head), part(plan, page, side, head), page.part_bytes(side, head));
    }
  }
}

}  // namespace kvasir
