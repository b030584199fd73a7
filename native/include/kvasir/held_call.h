// For callers in languages whose runtime holds memory only while native code is called with it, such as Java with
// java.lang.foreign: they call this with the memory, and do the rest from inside.
#pragma once

#include <cstdint>

namespace kvasir {

// The address of a C function, void(const void* memory, void (*call)(void)): it calls `call`, does not look at
// `memory`, and returns. Nothing may be thrown through it.
int64_t held_call_address();

}  // namespace kvasir
