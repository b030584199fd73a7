#include "engine/cuda/families/codes.h"
#include "engine/cuda/families/fragments.h"

namespace kvasir::cuda {

extern const DeviceCodec uniform_device;
const DeviceCodec uniform_device = {fragments_family, codes_side};

}  // namespace kvasir::cuda
