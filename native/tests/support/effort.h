// How much the randomised and repeated tests do. 1 in a plain build, less under sanitizers (which cost a factor of 5 to
// 20); the environment variable KVASIR_TEST_EFFORT overrides, e.g. 10 for a long run.
#pragma once

#include <algorithm>
#include <cstdlib>

namespace support {

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define KVASIR_TESTS_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KVASIR_TESTS_SANITIZED 1
#endif

#ifdef KVASIR_TESTS_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

inline double effort() {
  static const double value = [] {
    const char* text = std::getenv("KVASIR_TEST_EFFORT");
    return text != nullptr ? std::atof(text) : kSanitized ? 0.1 : 1.0;
  }();
  return value;
}

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadsWatched = true;
#else
constexpr bool kThreadsWatched = false;
#endif

// `full` repetitions at effort 1, at least one.
inline int repeat(int full) { return std::max(1, static_cast<int>(full * effort())); }

// Walks over a large product test all of it at effort 1 and every fifth case below; 5 divides none of the products'
// dimensions, so each value of each of them still gets its turn.
class Sampler {
 public:
  bool skip() { return effort() < 1.0 && ++count_ % 5 != 0; }

 private:
  int count_ = 0;
};

// Seed of the randomised tests: KVASIR_TEST_SEED, else a fixed one. Tests print it when they fail.
inline unsigned long long seed() {
  const char* text = std::getenv("KVASIR_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 0) : 20250714ULL;
}

}  // namespace support
