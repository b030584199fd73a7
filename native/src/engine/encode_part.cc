#include <cstring>

#include "base/scratch.h"
#include "engine/engine.h"

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

}  // namespace kvasir
