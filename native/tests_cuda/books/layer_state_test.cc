// What the device is told of a layer of a sequence, and what launches are told while it changes.
#include "engine/cuda/layer_state.h"

#include <vector>

#include "books/host_runtime.h"
#include "check.h"
#include "codecs/codec.h"
#include "engine/cuda/device_layer.h"

namespace {

using namespace kvasir;
using namespace kvasir::cuda;

// A layer whose pages are numbers.
struct Scene {
  Codec codec = {};
  LayerPlan plan = {};
  DeviceArena arena{0};
  Workspaces workspaces;
  DeviceQueue queue{arena, nullptr, workspaces};
  std::vector<PageView> pages;
  std::vector<const PageView*> list;
  SideTable tables[2];

  explicit Scene(int most_pages) : pages(static_cast<size_t>(most_pages)) {
    plan.codecs[0] = plan.codecs[1] = &codec;
    plan.attention.kv_heads = plan.attention.query_heads = 1;
    plan.attention.head_dim = 64;
    plan.window = 16;
    plan.shapes.resize(2);
    for (size_t i = 0; i < pages.size(); ++i) {
      pages[i].data = reinterpret_cast<uint8_t*>(uintptr_t{0x100000} + 256 * i);
      pages[i].shape = &plan.shapes[0];
      list.push_back(&pages[i]);
    }
  }

  SequenceView view(int64_t count) const {
    SequenceView view = {};
    view.length = count * kPageTokens;
    view.pages = list.data();
    view.page_count = count;
    view.tables[0] = &tables[0];
    view.tables[1] = &tables[1];
    return view;
  }

  // Whether a launch that sees tokens from `oldest` on would find the pages of the view.
  void check_pages(const CudaLayerState& state, const SequenceView& view, int64_t oldest) const {
    const DeviceSequence seen = state.seen_before(view, 0, oldest);
    const int64_t hidden = oldest / kPageTokens;
    CHECK(seen.page_count == view.page_count - hidden, seen.page_count);
    for (int64_t i = 0; i < seen.page_count; ++i) {
      const PageView& page = pages[static_cast<size_t>(hidden + i)];
      const int level = static_cast<int>(page.shape - plan.shapes.data());
      CHECK(seen.pages[i] == page_reference(page.data, level), "page " << i << " is " << seen.pages[i]);
    }
  }
};

}  // namespace

HOST_CASE("layer states: room for more pages changes nothing until they are listed") {
  Scene scene(300);
  const DeviceLayer layer(scene.plan, scene.queue);
  CudaLayerState state(layer);
  for (const int64_t count : {64, 65, 160, 161, 299}) {
    const SequenceView before = scene.view(count), after = scene.view(count + 1);
    state.reserve(count, scene.tables);
    state.update(before, 0);
    scene.check_pages(state, before, 0);
    state.reserve(count + 1, scene.tables);  // of an append that fails after this
    scene.check_pages(state, before, 0);
    scene.check_pages(state, before, 5 * kPageTokens);
    state.reserve(count + 1, scene.tables);  // of the next one
    state.update(after, 0);
    scene.check_pages(state, after, 0);
  }
}

HOST_CASE("layer states: room that cannot be had changes nothing") {
  Scene scene(4);
  const DeviceLayer layer(scene.plan, scene.queue);
  CudaLayerState state(layer);
  const SequenceView view = scene.view(4);
  state.reserve(4, scene.tables);
  state.update(view, 0);
  host_runtime::state().allocations_left = 0;
  bool refused = false;
  try {
    state.reserve(int64_t{1} << 24, scene.tables);  // more than a slab
  } catch (const Error& error) {
    refused = error.code() == ErrorCode::kOutOfMemory;
  }
  host_runtime::state().allocations_left = -1;
  CHECK(refused, "128 MiB of references were had");
  CHECK(cudaGetLastError() == cudaSuccess, "an error is left for the next launch");
  scene.check_pages(state, view, 0);
}

HOST_CASE("layer states: pages that shrank are listed anew, in pieces too") {
  Scene scene(10);
  const DeviceLayer layer(scene.plan, scene.queue);
  CudaLayerState state(layer);
  const SequenceView view = scene.view(10);
  state.reserve(10, scene.tables);
  state.update(view, 0);
  scene.pages[3].shape = &scene.plan.shapes[1];
  Pieces pieces(scene.queue, 1, CudaLayerState::description_bytes(layer));
  state.update(view, 1, &pieces);
  pieces.write("describing sequences");
  scene.check_pages(state, view, 0);
  CHECK(state.epoch() == 1, state.epoch());
}
