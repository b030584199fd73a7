#include "reference/page.h"

static const reference::ReferenceRow row("commvq", [] {
  reference::ReferenceCodec codec = {};
  codec.trained = true;
  return codec;
}());
