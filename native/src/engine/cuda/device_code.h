// Which devices the kernels of a build run on, by what they were compiled for.
#pragma once

#include <string_view>

namespace kvasir::cuda {

// One of the architectures below. Capabilities are 10 * major + minor.
constexpr bool has_code_for_one(std::string_view architecture, int capability) {
  int number = 0;
  size_t digits = 0;
  while (digits < architecture.size() && architecture[digits] >= '0' && architecture[digits] <= '9') {
    number = 10 * number + (architecture[digits++] - '0');
  }
  if (digits == 0) return true;  // "all", "native" and the like: the driver will say
  const std::string_view rest = architecture.substr(digits);
  if (rest.substr(0, 1) == "a") return capability == number;  // what only this architecture has
  // 8.7 is of a family of its own, that of Orin: neither runs what was compiled for the others of 8.x, nor they its.
  const bool related = number / 10 == capability / 10 && (number == 87) == (capability == 87);
  const bool family = related && capability >= number;
  if (rest == "-real" || rest.substr(0, 1) == "f") return family;
  return capability >= number;  // PTX, which the driver compiles
}

// architectures: as CMAKE_CUDA_ARCHITECTURES has them, but with commas, such as "80-real,90". Code for 80 runs on 8.0
// and all 8.x after it but 8.7; where it is not "-real" alone, there is PTX too, for everything newer.
constexpr bool has_code_for(std::string_view architectures, int capability) {
  while (!architectures.empty()) {
    const size_t comma = architectures.find(',');
    if (has_code_for_one(architectures.substr(0, comma), capability)) return true;
    if (comma == std::string_view::npos) break;
    architectures.remove_prefix(comma + 1);
  }
  return false;
}

}  // namespace kvasir::cuda
