#include "reference/progressive_page.h"

static const reference::ReferenceRow row("progressive", reference::progressive_reference());
