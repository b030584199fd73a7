// Which backend is taken where nothing names one.
#include <cstdlib>
#include <string>

#include "support/doctest.h"
#include "support/formats.h"

TEST_CASE("backends: the default level is the best that this machine can run") {
  if (std::getenv("KVASIR_BACKEND") != nullptr) return;  // then it is that one
  const std::string chosen = kvasir::backend_at(kvasir::backend_index("auto")).name;
  CHECK(chosen == support::available_backends().front()->name);
  // Whoever knows the machine, as an emulator's caller does, says what it must be.
  if (const char* expected = std::getenv("KVASIR_TEST_BACKEND")) CHECK(chosen == expected);
}
