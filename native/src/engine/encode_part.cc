#include <cstring>
#include <string>

#include "base/scratch.h"
#include "engine/engine.h"
#include "kvasir/error.h"

namespace kvasir {

Append::PartPlace Append::place_of(int part) const {
  const PageShape& shape = plan_.shapes[0];
  const int key_parts = shape.parts(Side::kKeys);
  const Side side = part < key_parts ? Side::kKeys : Side::kValues;
  const int index = side == Side::kKeys ? part : part - key_parts;
  return {side, index * shape.formats[static_cast<int>(side)].heads};
}

void Append::encode_part(const NewPage& page, Side side, int kv_head, const uint8_t* head, const SideTable& table,
                         uint8_t* out) const {
  const int index = static_cast<int>(side);
  const PageFormat& format = page.view->format(side);
  struct PageRows;
  const int stride = format.heads * format.head_dim;
  float* gathered = thread_scratch<PageRows, float>(static_cast<size_t>(kPageTokens) * stride);
  for (int i = 0; i < format.heads; ++i) {
    rows(side, kv_head + i, page.number * kPageTokens, kPageTokens, gathered + i * format.head_dim, stride);
  }
  if (plan_.codecs[index]->flatten) {
    const auto vectors = side_vectors(table, kv_head, format.head_dim);
    plan_.codecs[index]->flatten(format, side_view(table, vectors, page.number), *plan_.match, gathered, out);
  }
  if (head) std::memcpy(out, head, format.head_bytes);
  plan_.attention.codecs[index].encode(format, gathered, out);
}

Engine::Tiles Engine::attend(const LayerPlan&, const AttentionRequest&, const DeviceQueries&) {
  throw Error(ErrorCode::kUnavailable, std::string("backend ") + name() + " has no device memory to attend on");
}

void Engine::add_queries(const LayerPlan&, uint8_t* const*, int, int, const DeviceQueries&) {
  throw Error(ErrorCode::kUnavailable, std::string("backend ") + name() + " has no device memory to read");
}

// Part by part, from the front: each lands at or before where it was.
size_t shrink_page(const LayerPlan& plan, const ShrinkingPage& page) {
  const PageShape& from = *page.from;
  const PageShape& to = *page.to;
  size_t end = to.table_bytes();
  size_t next = page.offsets ? page.offsets[0] : 0;
  for (int number = 0; number < from.parts(); ++number) {
    const int side = number >= from.parts(Side::kKeys);
    // The offsets still say where parts were, but for those that have moved.
    const size_t bytes = page.offsets ? page.offsets[number + 1] - next : from.formats[side].page_bytes;
    const uint8_t* part = page.data + next;
    uint8_t* out = page.data + end;
    next += bytes;
    if (page.offsets) page.offsets[number] = static_cast<uint32_t>(end);
    if (from.formats[side].bits == to.formats[side].bits) {
      std::memmove(out, part, bytes);
      end += bytes;
    } else {
      plan.attention.codecs[side].shrink(from.formats[side], to.formats[side], part, out);
      end += to.formats[side].page_bytes;
    }
  }
  if (page.offsets) page.offsets[to.parts()] = static_cast<uint32_t>(end);
  return end;
}

}  // namespace kvasir
