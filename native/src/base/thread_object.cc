#include "base/thread_object.h"

#if defined(_WIN32)
#include <windows.h>

#include "kvasir/error.h"

namespace kvasir {
namespace {

struct Kept {
  void* object;
  void (*destroy)(void*);
  Kept* older;
};

// The system hands over what the slot of the thread holds: nothing here depends on what else of the thread is left.
void WINAPI destroy_all(void* newest) {
  for (auto* kept = static_cast<Kept*>(newest); kept;) {
    kept->destroy(kept->object);
    delete std::exchange(kept, kept->older);
  }
}

}  // namespace

void at_thread_end(void* object, void (*destroy)(void*)) {
  static const DWORD slot = FlsAlloc(destroy_all);
  auto kept = std::make_unique<Kept>(Kept{object, destroy, nullptr});
  if (slot != FLS_OUT_OF_INDEXES) {
    kept->older = static_cast<Kept*>(FlsGetValue(slot));
    if (FlsSetValue(slot, kept.get())) {
      kept.release();
      return;
    }
  }
  throw Error(ErrorCode::kUnavailable, "Windows has no room for what belongs to a thread");
}

}  // namespace kvasir
#endif
