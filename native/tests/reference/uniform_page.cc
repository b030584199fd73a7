#include "reference/uniform_page.h"

static const reference::ReferenceRow row("uniform", reference::uniform_reference());
