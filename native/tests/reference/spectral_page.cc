#include "reference/spectral_page.h"

#include "reference/page.h"

// Its pages go by a basis: spectral_test.cc.
static const reference::ReferenceRow row("spectral", [] {
  reference::ReferenceCodec codec = {};
  codec.option_names = {"code_bits", "floor_bits"};
  codec.trained = true;
  return codec;
}());
