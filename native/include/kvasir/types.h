// The plain types and numbers that all other headers share.
#pragma once

#include <cstdint>

namespace kvasir {

enum class Side : int { kKeys = 0, kValues = 1 };

// What elements look like in memory: IEEE float32, IEEE float16, bfloat16.
enum class ElementType : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

// Rows in a caller's memory, one for each token and head, channels side by side: that of token t and head h begins
// t * token_stride + h * head_stride elements after `data`. Both strides 0 mean dense, [tokens][heads][head_dim].
// Either all heads of a token lie between it and the next one, or all tokens of a head do ("heads first": token_stride
// is head_dim, and head_stride tokens * head_dim); rows never overlap. The stride of a dimension of size 1 does not
// matter.
struct RowsView {
  const void* data = nullptr;  // aligned to its elements
  ElementType type = ElementType::kFloat32;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

// The same, to be written.
struct MutableRowsView {
  void* data = nullptr;
  ElementType type = ElementType::kFloat32;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

// Which two channels of a head RoPE rotates together.
enum class RopePairs : int {
  kHalves = 0,      // j and j + head_dim / 2 ("rotate half")
  kNeighbours = 1,  // 2 j and 2 j + 1 ("interleaved")
};

// How attention multiplies packed codes with queries and weights.
enum class Precision : int {
  kExact = 0,  // 15-bit queries and weights: normalised mean squared error <= 1e-6 against the decoded page, while one
               // channel's share of scores varies by about 16 at most (beyond, its square decides)
  kFast = 1,   // 8-bit weights for values where they suffice: <= 1e-4, fewer instructions
};

// Which pages give up bits first where a budget runs out and the codec can shrink ("progressive").
enum class ShrinkPolicy : int {
  kOldest = 0,  // the oldest of those with the most bits, only as many as needed: an append never waits for more than
                // three pages for each one that it seals
  kLayer = 1,   // all pages of the layer that needs the room, as in PM-KVQ
};

// In place of a layer number: every layer.
constexpr int kAllLayers = -1;

// Tokens per page. Fixed: formats, kernels and budgets are built on it.
constexpr int kPageTokens = 128;

// 16-bit rows are held in blocks of so many tokens, all kv heads and both sides: what a sequence takes at least in each
// layer, once it has a token.
constexpr int kRowBlockTokens = 16;

// Largest magnitude that append accepts. Below it the range of any group fits float16: 32752 - (-32752) = 65504.
constexpr float kMaxMagnitude = 32752.0f;

}  // namespace kvasir
