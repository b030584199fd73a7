#include "codecs/codec.h"
#include "engine/cuda/families/canonical.h"
#include "engine/cuda/families/family.h"

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

}  // namespace kvasir::cuda
