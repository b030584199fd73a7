// Kernels are compiled for the head dims of head_dim_supported.
#pragma once

#include <type_traits>

namespace kvasir::cuda {

// verb(std::integral_constant) for a supported head dim.
template <class Verb>
auto with_head_dim(int d, const Verb& verb) {
  if (d == 64) return verb(std::integral_constant<int, 64>());
  if (d == 96) return verb(std::integral_constant<int, 96>());
  if (d == 128) return verb(std::integral_constant<int, 128>());
  return verb(std::integral_constant<int, 256>());
}

}  // namespace kvasir::cuda
