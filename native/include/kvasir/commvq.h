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
// Objects are made and freed by create and destroy. Codebooks and encoders are constant and may be used from any number
// of threads; a trainer belongs to one thread at a time. Work runs on the library's threads. Results depend neither on
// their number nor on the machine's instruction set (but see ValueTrainer): equal data and seeds give equal codebooks.
// Arrays are dense and row-major; pointers are borrowed for the call alone. Every function throws kInvalidArgument for
// a size or a pointer that makes no sense, and kNotFinite for data that no cache would accept.
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

// Trains the tables of one layer by expectation and maximisation, one step at a time, so that the caller owns the loop:
//
//   std::unique_ptr<KeyTrainer> trainer(KeyTrainer::create(8, 128, RopePairs::kHalves, 11, 64, 1));
//   trainer->add(keys, tokens);
//   while (trainer->step()) report(trainer->done());
//   trainer->read_tables(tables);
//
// Each head trains its stages in turn. A step assigns every key to all centres with weights exp(-distance/temperature)
// and then solves for the table that fits those weights best, all its vectors together; the temperature falls from step
// to step. Of all tables of a stage the one with the least error under hard assignment is kept, and what it leaves over
// is the next stage's data. A stage ends after its steps, or where a step neither gains nor loses anything.
class KeyTrainer {
 public:
  static KeyTrainer* create(int kv_heads, int head_dim, RopePairs pairs, int stages, int entries, int64_t seed);
  static void destroy(KeyTrainer* trainer);
  ~KeyTrainer();
  KeyTrainer(const KeyTrainer&) = delete;
  KeyTrainer& operator=(const KeyTrainer&) = delete;

  // Most steps of a stage, 1..10000. Default 100.
  void set_steps(int steps);
  // The temperature of a stage's first step, of its second and of its last, with an exponential fall between these two,
  // in units of the norm of a whole token. Defaults 1, 1e-3 and 1e-5. Later stages scale the last two by what earlier
  // ones have left of the norm.
  void set_temperatures(double first, double second, double last);

  // More keys before RoPE, [tokens][kv_heads][head_dim]. Before the first step. At least `entries` tokens in all.
  void add(const float* rows, int64_t tokens);

  // Advances every head by one step. False where nothing was left to do.
  bool step();
  // Share of the work that is done, 0..1: stages that end early count whole.
  double done() const;
  int64_t tokens() const;
  // The stage that a head is in, 0..stages; `stages` when it is done.
  int stage(int kv_head) const;
  // Mean squared error of a head's normalised keys, per element: after its first `stage` stages, 0..stage(kv_head).
  double error(int kv_head, int stage) const;
  // The least error so far in the stage that a head is in; infinity before its second step.
  double stage_error(int kv_head) const;
  // out: [kv_heads][stages][entries][head_dim], as KeyCodebook takes it. Stages that are not done are all 0.
  void read_tables(float* out) const;

  struct Impl;

 private:
  KeyTrainer();
  std::unique_ptr<Impl> impl_;
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

// Fits a codebook without an encoder: bits by descent for the codebook in force, then the codebook by least squares for
// those bits, in turn. The first one quantises the principal components of the values, with as many bits for each as it
// is worth; what is kept never gets worse.
class ValueFitter {
 public:
  static ValueFitter* create(int width, int codes);
  static void destroy(ValueFitter* fitter);
  ~ValueFitter();
  ValueFitter(const ValueFitter&) = delete;
  ValueFitter& operator=(const ValueFitter&) = delete;

  // Most steps, 1..10000. Default 30. Ends before where a step gains less than 1e-4 of the error.
  void set_steps(int steps);
  // More values, [tokens][width]. Before the first step. At least 16 tokens in all.
  void add(const float* rows, int64_t tokens);
  // One step. False where nothing was left to do.
  bool step();
  double done() const;
  int64_t tokens() const;
  // Least mean squared error so far, per element of the values as they came; infinity before the first step.
  double error() const;
  // That of the least error, as ValueCodebook takes it. out: [codes][width].
  void read_table(float* out) const;
  // out: [codes].
  void read_thresholds(float* out) const;

  struct Impl;

 private:
  ValueFitter();
  std::unique_ptr<Impl> impl_;
};

// The paper's encoder: bits of a value by two linear layers.
//
//   x = value / scale, divided by its Euclidean norm, then normalised to mean 0 and variance 1 (+ 1e-5), times
//   norm_weight plus norm_bias
//   logits = second_weight gelu(first_weight x + first_bias) + second_bias
//
// Of each four logits the largest, the first of equals, gives two bits: (1,0), (0,1), (1,1) or (0,0). Deterministic:
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

// Trains an encoder and a codebook together: straight-through Gumbel-softmax and AdamW on the mean squared error of the
// values. One step is one batch. Results depend on data, seed and machine, not on the number of threads.
class ValueTrainer {
 public:
  static ValueTrainer* create(int width, int hidden, int codes, int64_t seed);
  static void destroy(ValueTrainer* trainer);
  ~ValueTrainer();
  ValueTrainer(const ValueTrainer&) = delete;
  ValueTrainer& operator=(const ValueTrainer&) = delete;

  // Before the first step. Steps in all, 1..10^8 (2000); tokens of a batch, 1..65536 (256).
  void set_steps(int steps);
  void set_batch(int tokens);
  // The highest learning rate (1e-3): reached after a twentieth of the steps, then falling to 0 like a cosine.
  void set_learning_rate(double rate);
  // Weight decay of the linear layers (0.01), as AdamW applies it.
  void set_weight_decay(double decay);
  // Of the softmax (1).
  void set_temperature(double temperature);
  // Where the codebook begins, [codes][width], for example that of a ValueFitter; else it is random.
  void set_table(const float* table);
  // More values, [tokens][width]. At least 16 tokens in all.
  void add(const float* rows, int64_t tokens);

  // One batch. False where all steps are done.
  bool step();
  double done() const;
  int64_t tokens() const;
  // Mean squared error of the last batch, per element, with the noise of training; infinity before the first step.
  double batch_error() const;
  // What ValueEncoder::create takes, and the codebook: table is [codes][width].
  void read(float* scale, float* norm_weight, float* norm_bias, float* first_weight, float* first_bias,
            float* second_weight, float* second_bias, float* table) const;

  struct Impl;

 private:
  ValueTrainer();
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
