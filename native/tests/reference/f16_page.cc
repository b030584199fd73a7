#include "reference/f16_page.h"

static const reference::ReferenceRow row("f16", reference::f16_reference());
