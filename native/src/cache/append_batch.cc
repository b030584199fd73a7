#include "cache/append_batch.h"

#include <algorithm>
#include <optional>

namespace kvasir {
namespace {

using Growths = std::vector<SequenceLayer::Growth>;

// Most tokens go where there is room already.
bool takes_nothing(const Growths& growths) {
  return std::none_of(growths.begin(), growths.end(), [](const auto& growth) { return growth.takes; });
}

// Of `room`, which is made for all of them.
void take_all(const LayerPlan& plan, Memory& memory, Engine& engine, const std::vector<SequenceLayer*>& layers,
              Growths& growths, std::optional<Memory::Room>& room) {
  if (takes_nothing(growths)) return;
  std::vector<Memory::Needs> needs;
  for (const auto& growth : growths) needs.push_back(growth.needs);
  room.emplace(memory.make_room(plan.index, needs));
  const PageShape* const* shapes = room->shapes.data();
  for (size_t i = 0; i < growths.size(); ++i) {
    layers[i]->take(plan, memory, engine, room->bytes, shapes, growths[i]);
    growths[i].loan = room->loans[i];
    shapes += needs[i].pages;
  }
}

}  // namespace

void append_batch(const LayerPlan& plan, Memory& memory, Engine& engine, const std::vector<SequenceLayer*>& layers,
                  Appends& appends) {
  const size_t count = layers.size();
  std::optional<Memory::Room> room;  // and what was taken of it goes back after what was promised stands again
  Growths growths;
  std::vector<Appends::Target> targets;
  std::vector<SequenceView> views(count);
  growths.reserve(count);
  try {
    for (size_t i = 0; i < count; ++i) {
      growths.push_back(layers[i]->open(plan, engine, appends[static_cast<int>(i)]));
    }
    take_all(plan, memory, engine, layers, growths, room);
    for (size_t i = 0; i < count; ++i) {
      layers[i]->seal(plan, engine, growths[i]);
      targets.push_back(layers[i]->target(growths[i]));
    }
    appends.fill(targets.data());
  } catch (...) {
    for (size_t i = 0; i < growths.size(); ++i) layers[i]->abandon(growths[i]);
    throw;
  }
  for (size_t i = 0; i < count; ++i) {
    layers[i]->commit(plan, memory, engine, growths[i]);
    views[i] = layers[i]->view(plan);
  }
  const auto pages = memory.read(plan.index);  // which the views name
  appends.finish(views.data());
}

}  // namespace kvasir
