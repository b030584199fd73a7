// Runs the cases whose names contain one of the arguments; all without arguments. Skips device cases where there is
// none.
#include <cuda_runtime_api.h>

#include <cstring>

#include "check.h"

int main(int argc, char** argv) {
  int devices = 0;
  const bool device = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  int passed = 0, failed = 0, skipped = 0;
  for (const check::Case& test : check::cases()) {
    bool wanted = argc == 1;
    for (int i = 1; i < argc; ++i) wanted |= std::strstr(test.name, argv[i]) != nullptr;
    if (!wanted) continue;
    if (test.needs_device && !device) {
      ++skipped;
      continue;
    }
    const int before = check::failures();
    test.run();
    const bool ok = check::failures() == before;
    std::printf("%s %s\n", ok ? "ok  " : "FAIL", test.name);
    std::fflush(stdout);
    ++(ok ? passed : failed);
  }
  std::printf("test cases: %d | %d passed | %d failed | %d skipped\n", passed + failed + skipped, passed, failed,
              skipped);
  return failed == 0 ? 0 : 1;
}
