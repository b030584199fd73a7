#include "reference/pattern_page.h"

static const reference::ReferenceRow row("pattern", reference::pattern_reference());
