#include "engine/cuda/families/codes.h"
#include "engine/cuda/families/fragments.h"

namespace kvasir::cuda {

extern const DeviceCodec f16_device;
const DeviceCodec f16_device = {fragments_family, codes_side};

}  // namespace kvasir::cuda
