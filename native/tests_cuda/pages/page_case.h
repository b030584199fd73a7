// Rows that are hard to quantise, the pages that docs/format.md prescribes for them, and memory on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "check.h"
#include "kernels/cuda/layout/side_format.h"
#include "kvasir/types.h"
#include "reference/page.h"

namespace page_case {

// Device memory for the length of a test.
class Buffer {
 public:
  explicit Buffer(size_t bytes, int fill = 0xa5);
  explicit Buffer(const std::vector<uint8_t>& bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  uint8_t* data() const { return data_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  std::vector<uint8_t> read() const;

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_;
};

template <class T>
std::vector<uint8_t> bytes_of(const std::vector<T>& values) {
  const auto* first = reinterpret_cast<const uint8_t*>(values.data());
  return {first, first + values.size() * sizeof(T)};
}

// Numbers as callers append them in a type: what is left of them there, and how they lie in memory. To nearest in
// float16, cut off in bfloat16.
struct TypedNumbers {
  std::vector<float> numbers;
  std::vector<uint8_t> bytes;
};
uint16_t bfloat_bits(float x);
TypedNumbers typed(std::vector<float> numbers, kvasir::ElementType type);

// One side of a layer: a codec, a width, and options by name.
struct Kind {
  kvasir::Elements elements;
  int bits;
  reference::Options options = {};
};

inline const Kind kHalves = {kvasir::Elements::kHalves, 16};
inline Kind uniform(int bits, const reference::Options& options = {}) {
  return {kvasir::Elements::kCodes, bits, options};
}
inline Kind progressive(int bits, const reference::Options& options = {}) {
  return {kvasir::Elements::kNarrowed, bits, options};
}

// A layer, and whether its pages are fragments.
struct Setting {
  int head_dim;
  int kv_heads;
  int pages;
  Kind keys, values;
  bool fragments;
};

std::string describe(const Setting& setting);

// The format that the codec would configure, with the shift of the options.
kvasir::PageFormat format_of(reference::Side side, const Kind& kind, int head_dim);

// Sides of the setting's family. Reports where fragments are asked for and there are none.
void make_sides(const Setting& setting, kvasir::cuda::SideFormat sides[2]);

// Float16 values, [tokens][head_dim]: groups that are constant, that have zeros of both signs, of subnormals, of the
// greatest magnitudes, of values whose quotients are ties, and ordinary ones.
std::vector<float> hard_rows(int tokens, int head_dim, unsigned seed);

// A layer's rows and pages, from the reference.
struct Layer {
  std::vector<float> rows[2];               // by side: [kv_heads][pages * 128][head_dim]
  std::vector<std::vector<uint8_t>> pages;  // as `setting` lays them out
  std::vector<float> decoded[2];            // as rows, where asked for
};

Layer make_layer(const Setting& setting, unsigned seed, bool decode = false);

// The same layer's pages from other kinds of the same rows: what shrinking must give.
std::vector<std::vector<uint8_t>> encode_layer(const Setting& setting, const std::vector<float> (&rows)[2]);

// Where and how two byte strings differ; empty where they do not.
std::string difference(const std::vector<uint8_t>& got, const std::vector<uint8_t>& expected);

}  // namespace page_case
