// A test runner for hosts that have a compiler and nothing else: cases register themselves, checks count.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace check {

// What a case needs of the device; kAlone: that no other process takes memory of it.
enum class Needs { kNothing, kDevice, kAlone };

struct Case {
  const char* name;
  Needs needs;
  void (*run)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> list;
  return list;
}

inline int& failures() {
  static int count = 0;
  return count;
}

struct Registration {
  Registration(const char* name, Needs needs, void (*run)()) { cases().push_back({name, needs, run}); }
};

inline void report(const char* file, int line, const std::string& text) {
  std::printf("%s:%d: %s\n", file, line, text.c_str());
  ++failures();
}

}  // namespace check

#define CHECK_NAME2(prefix, line) prefix##line
#define CHECK_NAME(prefix, line) CHECK_NAME2(prefix, line)
#define CHECK_CASE(name, needs)                                                                            \
  static void CHECK_NAME(run_, __LINE__)();                                                                \
  static check::Registration CHECK_NAME(registration_, __LINE__)(name, needs, CHECK_NAME(run_, __LINE__)); \
  static void CHECK_NAME(run_, __LINE__)()
#define HOST_CASE(name) CHECK_CASE(name, check::Needs::kNothing)
#define DEVICE_CASE(name) CHECK_CASE(name, check::Needs::kDevice)
#define LONE_DEVICE_CASE(name) CHECK_CASE(name, check::Needs::kAlone)

// CHECK(condition, what << to << print)
#define CHECK(condition, message)                    \
  do {                                               \
    if (!(condition)) {                              \
      std::ostringstream text;                       \
      text << #condition << " fails: " << message;   \
      check::report(__FILE__, __LINE__, text.str()); \
    }                                                \
  } while (false)

// A CUDA call without which the program cannot go on.
#define CUDA(call)                                                                           \
  do {                                                                                       \
    const cudaError_t status = (call);                                                       \
    if (status != cudaSuccess) {                                                             \
      std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status)); \
      std::exit(3);                                                                          \
    }                                                                                        \
  } while (false)
