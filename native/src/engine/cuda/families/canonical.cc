#include "engine/cuda/families/canonical.h"

#include <cstring>

#include "base/scratch.h"
#include "base/thread_pool.h"
#include "engine/cuda/families/codes.h"

namespace kvasir::cuda {

CanonicalFamily::CanonicalFamily(const DeviceLayer& layer) : layer_(layer) {
  for (const Side side : {Side::kKeys, Side::kValues}) {
    const int index = static_cast<int>(side);
    sides_[index] = device_codec(*layer.plan().codecs[index]).side(layer, side);
  }
}

bool CanonicalFamily::lay_out(StagedPages& staged, const uint8_t* sums, PartHeads& heads) const {
  return sides_[0]->lay_out(staged, sums, heads) || sides_[1]->lay_out(staged, sums, heads);
}

void CanonicalFamily::seal(const StagedPages& staged, const NewPages& pages) const {
  // What the device seals is written after what this machine sends up.
  if (sides_[0]->sealed_here() || sides_[1]->sealed_here()) seal_here(pages);
  for (const auto& side : sides_) {
    if (!side->sealed_here()) side->seal(staged, pages);
  }
}

void CanonicalFamily::seal_here(const NewPages& pages) const {
  struct Part {
    int64_t page;
    Side side;
    int kv_head;
  };
  std::vector<Part> parts;
  std::vector<std::vector<uint8_t>> canonical;
  for (const NewPage& page : pages.pages) {
    const PageShape& shape = *page.view->shape;
    canonical.emplace_back(shape.varies() ? page.view->offsets[shape.parts()] : shape.bytes());
    if (shape.varies()) {
      std::memcpy(canonical.back().data(), page.view->offsets, sizeof(uint32_t) * (shape.parts() + 1));
    }
    for (const Side side : {Side::kKeys, Side::kValues}) {
      if (!at(side).sealed_here()) continue;
      const int heads = shape.formats[static_cast<int>(side)].heads;
      for (int head = 0; head < shape.kv_heads; head += heads) {
        parts.push_back({static_cast<int64_t>(canonical.size()) - 1, side, head});
      }
    }
  }
  ThreadPool::current().run(static_cast<int>(parts.size()), [&](int task) {
    const auto& [page, side, kv_head] = parts[static_cast<size_t>(task)];
    const auto number = static_cast<size_t>(page);
    pages.encode_here(page, side, kv_head,
                      canonical[number].data() + pages.pages[number].view->part_offset(side, kv_head));
  });
  for (size_t i = 0; i < canonical.size(); ++i) {
    layer_.queue().upload(pages.pages[i].data, canonical[i].data(), canonical[i].size(), "uploading pages");
  }
}

const uint8_t* CanonicalFamily::download(const uint8_t* from, size_t bytes) const {
  auto* out = thread_scratch<CanonicalFamily, uint8_t>(bytes);
  layer_.queue().download(out, from, bytes, "reading a page");
  return out;
}

const uint8_t* CanonicalFamily::part(const PageView& page, Side side, int kv_head) const {
  return download(page.part(side, kv_head), page.part_bytes(side, kv_head));
}

const uint8_t* CanonicalFamily::part_widths(const PageView& page, Side side, int kv_head) const {
  const size_t offset = page.format(side).head_offset(kv_head);
  return download(page.part(side, kv_head) + offset,
                  std::min<size_t>(kWidthBytes, page.part_bytes(side, kv_head) - offset));
}

void CanonicalFamily::write_page(const NewPage& page, const uint8_t* from) const {
  layer_.queue().upload(page.data, from, page.view->bytes(), "restoring a page");
}

bool CanonicalFamily::shrink(const std::vector<ShrinkingPage>& pages) const {
  const PageShape& from = *pages[0].from;
  const PageShape& to = *pages[0].to;
  if (from.varies() || !sides_[0]->shrinks() || !sides_[1]->shrinks()) return false;
  shrink_codes(layer_, pages, {canonical_side(from, Side::kKeys), canonical_side(from, Side::kValues)},
               {canonical_side(to, Side::kKeys), canonical_side(to, Side::kValues)});
  return true;
}

void CanonicalFamily::read_rows(const PageRun& run, float* const (&out)[2]) const {
  for (int side = 0; side < 2; ++side) {
    if (out[side]) sides_[side]->read_rows(run, out[side]);
  }
}

}  // namespace kvasir::cuda
