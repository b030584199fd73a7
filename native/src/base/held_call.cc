#include "kvasir/held_call.h"

namespace kvasir {
namespace {

extern "C" void call_held(const void*, void (*call)()) { call(); }

}  // namespace

int64_t held_call_address() { return static_cast<int64_t>(reinterpret_cast<intptr_t>(&call_held)); }

}  // namespace kvasir
