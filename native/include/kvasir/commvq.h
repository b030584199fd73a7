// CommVQ: keys as sums of complex vectors that commute with RoPE, values as sums of a codebook's rows.
//
// Keys are taken before RoPE. The two channels of RoPE pair j are one complex number, so a head is a complex vector of
// head_dim / 2 numbers and RoPE a multiplication by e^(i position frequency). A stage has one table of vectors z; its
// code for a head is a pair (a, b) and stands for z_a + i z_b; a key is the sum over its stages, each of which encodes
// what those before it left over, times the token's norm. The codes of a token do not change when its position does.
//
// Values are taken for all kv heads at once: a value is s C times the token's gain, with one bit in s for each row of
// C. Attention multiplies its weights by the bits first and by C once.
//
//   a token of keys     kv_heads * stages * 2 log2(entries) bits, and 16 for the norm
//   a token of values   codes bits, and 16 for the gain
//
// Objects are made and freed by create and destroy, are constant, and may be used from any number of threads. Work runs
// on the library's threads; results depend neither on their number nor on the machine's instruction set. Arrays are
// dense and row-major; pointers are borrowed for the call alone. Every function throws kInvalidArgument for a size or a
// pointer that makes no sense, and kNotFinite for data that no cache would accept.
#pragma once

#include <cstdint>
#include <memory>

#include "kvasir/types.h"

namespace kvasir {

// Keys -------------------------------------------------------------------------------------------------------

// The tables of one layer.
//
// Tables are [kv_heads][stages][entries][head_dim], float16 values held as float32, in planar form: a vector's real
// parts (the first channels of the RoPE pairs), then its imaginary parts. Decoding thus adds whole rows: entry a as it
// stands, and entry b with its halves exchanged and the new first half negated.
//
// Codes are packed by pages of 128 tokens: [pages][kv_heads][stages], each 128 codes of 2 log2(entries) bits, the code
// of token t in the bits from t * 2 log2(entries) on, lowest bit of the first byte first: a in the lower half of a
// code, b in the upper. 192, 160 or 128 bytes for 64, 32 or 16 entries. Codes after the last token are 0.
//
// The norm of a token is the root mean square over all its kv heads, rounded to float16: codes describe the row divided
// by it.
class KeyCodebook {
 public:
  // kv_heads 1..1024, head_dim a multiple of 16 in 32..256, stages 1..64, entries 16, 32 or 64. Tables are rounded to
  // float16; elements above 65504 in magnitude are refused.
  static KeyCodebook* create(int kv_heads, int head_dim, RopePairs pairs, int stages, int entries, const float* tables);
  static void destroy(KeyCodebook* codebook);
  // Another handle of the same object, to be destroyed on its own.
  KeyCodebook* share() const;
  ~KeyCodebook();
  KeyCodebook(const KeyCodebook&) = delete;
  KeyCodebook& operator=(const KeyCodebook&) = delete;

  int kv_heads() const;
  int head_dim() const;
  RopePairs pairs() const;
  int stages() const;
  int entries() const;
  // Bytes of the codes of so many tokens, all kv heads.
  int64_t code_bytes(int64_t tokens) const;
  // out: [kv_heads][stages][entries][head_dim].
  void read_tables(float* out) const;

  // rows: [tokens][kv_heads][head_dim], keys before RoPE. codes: code_bytes(tokens). norms: [tokens] float16 bits.
  // Greedy: each stage takes its nearest centre. Then every stage is revisited up to `refinements` times while codes
  // change; the error never grows. 0..100.
  void encode(const float* rows, int64_t tokens, int refinements, uint8_t* codes, uint16_t* norms) const;
  // rows: [tokens][kv_heads][head_dim], before RoPE.
  void decode(const uint8_t* codes, const uint16_t* norms, int64_t tokens, float* rows) const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  KeyCodebook();
  std::shared_ptr<Impl> impl_;
};

// Values -----------------------------------------------------------------------------------------------------

// The codebook of one layer: value = gain * (s C).
//
// C is [codes][width], float16 values held as float32; width is kv_heads * head_dim, and kv head h owns the columns
// from h * head_dim on. Bits are [tokens][codes / 8] bytes, bit n of a token in byte n / 8 at 2^(n % 8): a row of masks
// for the lanes that hold sums over tokens, by code. Gains are [tokens] float16 bits and carry all of a token's scale,
// so that decoding needs no other number per token: attention forms the sums of weight * gain by code, then multiplies
// by C.
//
// Thresholds serve encoding without an encoder. Bits are decided in order: bit n is set where what is left of the value
// (divided by its root mean square), less the rows of the bits set so far, has more than thresholds[n] of row n in it.
// 0.5 is nearest; rows that are followed by halves and quarters of themselves want more, and a constant wants -65504.
class ValueCodebook {
 public:
  // width a multiple of 16 in 16..65536, codes a multiple of 16 in 16..16384. C is rounded to float16.
  // thresholds: [codes], -65504..65504, or null for 0.5 everywhere.
  static ValueCodebook* create(int width, int codes, const float* table, const float* thresholds);
  static void destroy(ValueCodebook* codebook);
  // Another handle of the same object, to be destroyed on its own.
  ValueCodebook* share() const;
  ~ValueCodebook();
  ValueCodebook(const ValueCodebook&) = delete;
  ValueCodebook& operator=(const ValueCodebook&) = delete;

  int width() const;
  int codes() const;
  // Bytes of the bits of so many tokens.
  int64_t bit_bytes(int64_t tokens) const;
  // out: [codes][width].
  void read_table(float* out) const;
  // out: [codes].
  void read_thresholds(float* out) const;

  // Bits without an encoder: by the thresholds; then the bit whose flip lowers the error most is flipped until none
  // does. Then the gain that leaves the least error. rows: [tokens][width]. bits: bit_bytes(tokens). gains: [tokens].
  void encode(const float* rows, int64_t tokens, uint8_t* bits, uint16_t* gains) const;
  // The same from the bits that are there (an encoder's), with at most `flips` flips a token; 0 only finds the gains.
  // The error never grows.
  void refine(const float* rows, int64_t tokens, int flips, uint8_t* bits, uint16_t* gains) const;
  // rows: [tokens][width].
  void decode(const uint8_t* bits, const uint16_t* gains, int64_t tokens, float* rows) const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  ValueCodebook();
  std::shared_ptr<Impl> impl_;
};

// The paper's encoder: bits of a value by two linear layers.
//
//   x = value / scale, divided by its Euclidean norm, then normalised to mean 0 and variance 1 (+ 1e-5), times
//   norm_weight plus norm_bias
//   logits = second_weight gelu(first_weight x + first_bias) + second_bias
//
// The largest of each four logits, the first of equals, gives two bits: (1,0), (0,1), (1,1) or (0,0). Deterministic:
// the noise belongs to training.
class ValueEncoder {
 public:
  // scale, norm_weight, norm_bias: [width]; first_weight: [hidden][width], first_bias: [hidden]; second_weight:
  // [2 * codes][hidden], second_bias: [2 * codes]. Scales are positive; all is finite. hidden 1..65536.
  static ValueEncoder* create(int width, int hidden, int codes, const float* scale, const float* norm_weight,
                              const float* norm_bias, const float* first_weight, const float* first_bias,
                              const float* second_weight, const float* second_bias);
  static void destroy(ValueEncoder* encoder);
  // Another handle of the same object, to be destroyed on its own.
  ValueEncoder* share() const;
  ~ValueEncoder();
  ValueEncoder(const ValueEncoder&) = delete;
  ValueEncoder& operator=(const ValueEncoder&) = delete;

  int width() const;
  int hidden() const;
  int codes() const;
  // rows: [tokens][width]. bits: [tokens][codes / 8], as ValueCodebook::refine takes them.
  void encode(const float* rows, int64_t tokens, uint8_t* bits) const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  ValueEncoder();
  std::shared_ptr<Impl> impl_;
};

}  // namespace kvasir
