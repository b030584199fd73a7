#include "engine/cuda/families/family.h"

#include "codecs/codec.h"
#include "engine/cuda/families/canonical.h"

namespace kvasir::cuda {

#define CODEC(name) extern const DeviceCodec name##_device;
#include "codecs/codecs.def"
#undef CODEC

namespace {

constexpr const DeviceCodec* kCodecs[] = {
#define CODEC(name) &name##_device,
#include "codecs/codecs.def"
#undef CODEC
};

}  // namespace

const DeviceCodec& device_codec(const Codec& codec) { return *kCodecs[codec_index(codec.name)]; }

std::unique_ptr<PageFamily> make_family(const DeviceLayer& layer) {
  const DeviceCodec& keys = device_codec(*layer.plan().codecs[0]);
  std::unique_ptr<PageFamily> family = keys.family ? keys.family(layer) : nullptr;
  return family ? std::move(family) : std::make_unique<CanonicalFamily>(layer);
}

QueryMemory QueryMemory::from(const AttentionLayer& layer, int64_t row) const {
  const auto heads = static_cast<size_t>(row) * static_cast<size_t>(layer.query_heads);
  const size_t bytes = heads * element_bytes(type);
  QueryMemory later = *this;
  later.queries = static_cast<const uint8_t*>(queries) + bytes * static_cast<size_t>(layer.query_dim());
  later.outputs = static_cast<uint8_t*>(outputs) + bytes * static_cast<size_t>(layer.output_dim());
  if (ends.log_sums) later.ends.log_sums += heads;
  return later;
}

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
