// Training of CommVQ's codebooks (commvq.h has what they are) from keys and values that a model has shown.
//
// Trainers are made and freed by create and destroy, and belong to one thread at a time. Work runs on the library's
// threads. Results depend neither on their number nor on the machine's instruction set (but see ValueTrainer): equal
// data and seeds give equal codebooks. Arrays, pointers and errors are as in commvq.h. A step that throws for want of
// memory has ended its training: step and what reads results throw kInvalidArgument from then on.
#pragma once

#include <cstdint>
#include <memory>

#include "kvasir/types.h"

namespace kvasir {

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
//
// When the last stage of a head is done, its tables are rounded to numbers that Precision::kFast can look up as bytes,
// from the first stage on, and each is fitted once more to what the rounded ones before it leave. Errors are then
// measured anew.
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
  // in units of the norm of a whole token; 1e-12..1e6 each. Defaults 1, 1e-3 and 1e-5. Later stages scale the last two
  // by what earlier ones have left of the norm.
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
  // The least error so far in the stage that a head is in, infinity before its second step; when it is done, that of
  // its tables.
  double stage_error(int kv_head) const;
  // out: [kv_heads][stages][entries][head_dim], as KeyCodebook takes it. Stages that are not done are all 0. After
  // the first step.
  void read_tables(float* out) const;

  struct Impl;

 private:
  KeyTrainer();
  std::unique_ptr<Impl> impl_;
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
  // The temperature of the softmax (1), 1e-12..1e6.
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
