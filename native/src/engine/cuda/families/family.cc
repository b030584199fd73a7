#include "engine/cuda/families/family.h"

namespace kvasir::cuda {

std::vector<uint8_t*> NewPages::addresses() const {
  std::vector<uint8_t*> addresses;
  for (const NewPage& page : pages) addresses.push_back(page.data);
  return addresses;
}

std::vector<const uint8_t*> PageRun::addresses() const {
  std::vector<const uint8_t*> addresses;
  for (int64_t i = begin; i < end; ++i) addresses.push_back(view.pages[i]->data);
  return addresses;
}

std::vector<const uint8_t*> PageRun::addresses(Side side) const {
  if (!shape().varies()) return addresses();
  std::vector<const uint8_t*> addresses;
  for (int64_t i = begin; i < end; ++i) addresses.push_back(view.pages[i]->part(side, 0));
  return addresses;
}

}  // namespace kvasir::cuda
