// What RowsView (kvasir/types.h) promises, checked, and where its rows begin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/checked.h"
#include "base/checks.h"
#include "kvasir/types.h"

namespace kvasir {

inline size_t element_bytes(ElementType type) {
  return type == ElementType::kFloat32 ? sizeof(float) : sizeof(uint16_t);
}

inline void require_type(const char* name, ElementType type) {
  if (type != ElementType::kFloat32 && type != ElementType::kFloat16 && type != ElementType::kBFloat16) {
    refuse("element type " + std::to_string(static_cast<int>(type)) + " of " + name);
  }
}

// `view` with its strides spelled out. `name` is what errors call it; tokens and heads are positive. Throws
// kInvalidArgument for what no rows can be, and looks at none of them.
template <class View>
View checked_rows(const char* name, View view, int64_t tokens, int64_t heads, int64_t width) {
  require_pointer(name, view.data);
  require_type(name, view.type);
  const size_t bytes = element_bytes(view.type);
  if (reinterpret_cast<uintptr_t>(view.data) % bytes != 0) {
    refuse(std::string(name) + " begin at an address that is no multiple of " + std::to_string(bytes));
  }
  const auto text = [&] {
    return std::string(name) + " have strides of " + std::to_string(view.token_stride) + " a token and " +
           std::to_string(view.head_stride) + " a head";
  };
  if (view.token_stride < 0 || view.head_stride < 0) refuse(text() + ", not 0 or more");
  if (view.token_stride == 0 && view.head_stride == 0) {
    view.head_stride = width;
    view.token_stride = checked_multiply(heads, width, name);
  }
  // A dimension of size 1 has any stride; the other then has to keep rows apart.
  const int64_t across_tokens = checked_multiply(tokens - 1, view.token_stride, name);
  const int64_t across_heads = checked_multiply(heads - 1, view.head_stride, name);
  const int64_t of_token = checked_add(across_heads, width, name), of_head = checked_add(across_tokens, width, name);
  const bool heads_apart = heads == 1 || view.head_stride >= width;
  const bool tokens_apart = tokens == 1 || view.token_stride >= width;
  const bool nested = tokens == 1 || heads == 1 || view.token_stride >= of_token || view.head_stride >= of_head;
  if (!heads_apart || !tokens_apart || !nested) {
    refuse(text() + ": " + std::to_string(tokens) + " tokens of " + std::to_string(heads) + " heads of " +
           std::to_string(width) + " channels overlap");
  }
  checked_multiply(checked_add(across_tokens, of_token, name), static_cast<int64_t>(bytes), name);
  return view;
}

// Of a view with its strides spelled out: where a row begins.
inline const void* row_at(const RowsView& view, int64_t token, int64_t head) {
  const int64_t element = token * view.token_stride + head * view.head_stride;
  return static_cast<const uint8_t*>(view.data) + static_cast<size_t>(element) * element_bytes(view.type);
}
inline void* row_at(const MutableRowsView& view, int64_t token, int64_t head) {
  const int64_t element = token * view.token_stride + head * view.head_stride;
  return static_cast<uint8_t*>(view.data) + static_cast<size_t>(element) * element_bytes(view.type);
}
// Whether all of it is one block, [tokens][heads][width].
template <class View>
bool is_dense(const View& view, int64_t tokens, int64_t heads, int64_t width) {
  return (heads == 1 || view.head_stride == width) && (tokens == 1 || view.token_stride == heads * width);
}

}  // namespace kvasir
