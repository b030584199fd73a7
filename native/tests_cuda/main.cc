// kvasir_cuda_tests [--alone | --beside SHARE/SHARES] [NAME...]
//
// Runs the cases whose names contain one of the arguments; all without any. Skips device cases where there is none.
// --alone: of these, the ones that need the device for themselves; --beside: the others, or of those every so manieth,
// for processes beside each other.
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstring>

#include "check.h"

namespace {

struct Choice {
  bool alone = false, beside = false;
  int share = 0, shares = 1;
  std::vector<const char*> names;

  Choice(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], "--alone") == 0) {
        alone = true;
      } else if (std::strcmp(argv[i], "--beside") == 0) {
        beside = true;
        if (i + 1 == argc || std::sscanf(argv[++i], "%d/%d", &share, &shares) != 2 || share < 0 || share >= shares) {
          std::fprintf(stderr, "--beside SHARE/SHARES, from 0/SHARES on\n");
          std::exit(2);
        }
      } else {
        names.push_back(argv[i]);
      }
    }
  }

  bool has(const check::Case& test) const {
    const bool lone = test.needs == check::Needs::kAlone;
    bool named = names.empty();
    for (const char* name : names) named |= std::strstr(test.name, name) != nullptr;
    return named && (lone ? !beside : !alone);
  }
};

}  // namespace

int main(int argc, char** argv) {
  const Choice choice(argc, argv);
  int devices = 0;
  const bool device = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  int passed = 0, failed = 0, skipped = 0, seen = 0;
  for (const check::Case& test : check::cases()) {
    if (!choice.has(test) || seen++ % choice.shares != choice.share) continue;
    if (test.needs != check::Needs::kNothing && !device) {
      ++skipped;
      continue;
    }
    const int before = check::failures();
    const auto start = std::chrono::steady_clock::now();
    test.run();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const bool ok = check::failures() == before;
    std::printf("%s %s (%.1f s)\n", ok ? "ok  " : "FAIL", test.name, took.count());
    std::fflush(stdout);
    ++(ok ? passed : failed);
  }
  std::printf("test cases: %d | %d passed | %d failed | %d skipped\n", passed + failed + skipped, passed, failed,
              skipped);
  return failed == 0 ? 0 : 1;
}
