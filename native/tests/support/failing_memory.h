// Memory that runs out when a test says so: the n-th allocation from now on fails, once, on whatever thread it is.
// operator new and aligned_alloc of the whole test program go through it.
#pragma once

namespace support {

class FailingMemory {
 public:
  // nth: 1 for the very next one.
  explicit FailingMemory(int nth);
  ~FailingMemory();
  FailingMemory(const FailingMemory&) = delete;

  // Whether it came to that.
  static bool has_failed();
};

}  // namespace support
