#include "reference/tiered_page.h"

static const reference::ReferenceRow row("tiered", reference::tiered_reference());
