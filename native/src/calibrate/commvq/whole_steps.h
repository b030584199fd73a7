// Steps of a training that happen whole or end it: where one throws, the state is neither that before it nor that after
// it, and neither going on nor a result of it would mean anything.
#pragma once

#include "base/checks.h"

namespace kvasir::commvq {

class WholeSteps {
 public:
  // Throws where an earlier step has ended half-way.
  void require() const {
    if (broken_) refuse("a step of this training failed half-way: begin with a new trainer");
  }
  template <class Work>
  void run(const Work& work) {
    require();
    broken_ = true;
    work();
    broken_ = false;
  }

 private:
  bool broken_ = false;
};

}  // namespace kvasir::commvq
