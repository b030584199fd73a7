// Expectation and maximisation for the tables of keys (the paper's algorithm 1 and A.2).
//
// Minimised over the vectors z of a stage: sum over points n and centres (a, b) of w_nab |x_n - z_a - i z_b|^2. Setting
// its derivatives to 0 gives, with N_ab = sum_n w_nab and its row and column sums r and c,
//
//   (r_l + c_l) z_l + i sum_b N_lb z_b - i sum_a N_al z_a = sum_n (u_nl - i v_nl) x_n
//
// where u_na and v_nb are the sums of w_nab over b and over a: one Hermitian matrix for all channels, and right-hand
// sides that need two weights per point and vector, not one per point and centre.
#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <string>
#include <vector>

#include "base/checks.h"
#include "base/half.h"
#include "base/rope.h"
#include "base/scratch.h"
#include "base/thread_pool.h"
#include "calibrate/commvq/byte_tables.h"
#include "calibrate/commvq/hermitian.h"
#include "calibrate/commvq/random.h"
#include "calibrate/commvq/temperature.h"
#include "calibrate/commvq/whole_steps.h"
#include "codecs/commvq/key_tables.h"
#include "kernels/kernels.h"
#include "kvasir/commvq_training.h"

namespace kvasir {
namespace {

using commvq::Stage;

// Points whose sums are kept in float32 before they join those in double.
constexpr int kSumPoints = 256;
// Parts of a head's points, each with sums of its own. Fixed, so that sums are cut in the same places on any number of
// threads.
constexpr int kSlices = 16;
// A step that changes the error by less is the last of its stage.
constexpr double kStill = 1e-5;

// What the assignment of a slice of points adds up to.
struct Sums {
  std::vector<double> joint;    // [entries][entries]
  std::vector<double> moments;  // [2 * entries][head_dim]: of u, then of v
  double squared_error = 0.0;

  void reset(int entries, int head_dim) {
    joint.assign(static_cast<size_t>(entries) * entries, 0.0);
    moments.assign(static_cast<size_t>(2) * entries * head_dim, 0.0);
    squared_error = 0.0;
  }
  void add(const Sums& other) {
    for (size_t i = 0; i < joint.size(); ++i) joint[i] += other.joint[i];
    for (size_t i = 0; i < moments.size(); ++i) moments[i] += other.moments[i];
    squared_error += other.squared_error;
  }
};

void add_floats(const float* from, std::vector<double>& to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += static_cast<double>(from[i]);
}

}  // namespace

struct KeyTrainer::Impl {
  // One head: its points, the table in work and the tables that are done.
  struct Head {
    std::vector<float> points;       // [tokens][head_dim], planar and normalised, less what finished stages say
    std::vector<float> squares;      // [tokens], |x|^2
    std::vector<float> table, best;  // [entries][head_dim]
    std::vector<float> done;         // finished tables, one after the other
    std::vector<uint16_t> codes;     // [finished stages][tokens]
    std::vector<double> errors;      // per element: before stage 0, after it, ...
    std::vector<Sums> slices;
    double best_error = std::numeric_limits<double>::infinity();
    int step = 0;
    bool finished = false;
  };

  const CodebookKernels& kernels = resolve_codebooks(backend_index("auto"));
  commvq::KeyShape shape;
  uint64_t seed;
  int steps = 100;
  double first_temperature = 1.0, second_temperature = 1e-3, last_temperature = 1e-5;
  int64_t tokens = 0;
  bool started = false;
  commvq::WholeSteps whole;
  std::vector<Head> heads;

  int64_t slice_begin(int slice) const { return tokens * slice / kSlices; }

  void require_tokens() const {
    if (tokens < shape.entries) {
      refuse(std::to_string(tokens) + " tokens are too few for tables of " + std::to_string(shape.entries) +
             " entries");
    }
  }

  void start() {
    started = true;
    ThreadPool::shared().run(shape.kv_heads, [&](int h) {
      heads[h].slices.resize(kSlices);
      measure(heads[h]);
      begin_stage(h);
    });
  }

  // Squares of all points, and their mean as the next error.
  void measure(Head& head) const {
    const int d = shape.head_dim;
    head.squares.resize(static_cast<size_t>(tokens));
    double sum = 0.0;
    for (int64_t t = 0; t < tokens; ++t) {
      const float* x = head.points.data() + t * d;
      double square = 0.0;
      for (int c = 0; c < d; ++c) square += static_cast<double>(x[c]) * x[c];
      head.squares[static_cast<size_t>(t)] = static_cast<float>(square);
      sum += square;
    }
    head.errors.push_back(sum / (static_cast<double>(tokens) * d));
  }

  // Centres (l, l) of the first table are points: z = x / (1 + i). One from each of `entries` equal parts of the data.
  void begin_stage(int h) {
    Head& head = heads[h];
    const int d = shape.head_dim, half = d / 2;
    const uint64_t stage = head.done.size() / shape.table_floats();
    head.table.resize(shape.table_floats());
    for (int e = 0; e < shape.entries; ++e) {
      const double within = commvq::unit_interval(commvq::random_bits(seed, h, stage, e));
      const int64_t t = std::min<int64_t>(tokens - 1, static_cast<int64_t>((e + within) / shape.entries * tokens));
      const float* x = head.points.data() + t * d;
      float* z = head.table.data() + static_cast<size_t>(e) * d;
      for (int j = 0; j < half; ++j) {
        z[j] = 0.5f * (x[j] + x[half + j]);
        z[half + j] = 0.5f * (x[half + j] - x[j]);
      }
    }
    head.step = 0;
    head.best.clear();
    head.best_error = std::numeric_limits<double>::infinity();
  }

  // In units of the points: a token's norm is the root of its width.
  float temperature(const Head& head) const {
    const double unit = std::sqrt(static_cast<double>(shape.width()));
    // Far below any difference of distances, yet a number that float32 can divide by.
    const double least = commvq::kLeastTemperature * unit;
    if (head.step == 0) return static_cast<float>(std::max(first_temperature * unit, least));
    const double left = std::sqrt(head.errors.back() / std::max(head.errors.front(), 1e-300));
    const double way = steps > 2 ? (head.step - 1.0) / (steps - 2.0) : 0.0;
    const double t = second_temperature * std::pow(last_temperature / second_temperature, way);
    return static_cast<float>(std::max(t * unit * left, least));
  }

  void assign_slice(Head& head, const Stage& stage, int slice) const {
    struct Products;
    struct Weights;
    struct Joint;
    struct Moments;
    const int entries = shape.entries, d = shape.head_dim;
    const size_t wide = static_cast<size_t>(2) * entries;
    float* const products = thread_scratch<Products, float>(kSumPoints * wide);
    float* const weights = thread_scratch<Weights, float>(kSumPoints * wide);
    float* const joint = thread_scratch<Joint, float>(static_cast<size_t>(entries) * entries);
    float* const moments = thread_scratch<Moments, float>(wide * d);
    Sums& sums = head.slices[slice];
    sums.reset(entries, d);
    const float t = temperature(head);
    const int64_t end = slice_begin(slice + 1);
    for (int64_t first = slice_begin(slice); first < end; first += kSumPoints) {
      const int count = static_cast<int>(std::min<int64_t>(kSumPoints, end - first));
      const float* rows = head.points.data() + first * d;
      kernels.products(rows, count, d, d, stage.columns(), 2 * entries, products);
      std::fill(joint, joint + static_cast<size_t>(entries) * entries, 0.0f);
      std::fill(moments, moments + wide * d, 0.0f);
      for (int i = 0; i < count; ++i) {
        const float squared = head.squares[static_cast<size_t>(first + i)];
        const float score =
            kernels.soften(products + i * wide, entries, stage.cross(), squared, t, joint, weights + i * wide);
        sums.squared_error += std::max(0.0, static_cast<double>(score) + squared);
      }
      kernels.accumulate(weights, count, 2 * entries, rows, d, d, moments);
      add_floats(joint, sums.joint);
      add_floats(moments, sums.moments);
    }
  }

  // The table that fits the weights of all slices best; float16 values, as it will be stored.
  void fit(Head& head) const {
    const int entries = shape.entries, d = shape.head_dim, half = d / 2;
    for (int s = 1; s < kSlices; ++s) head.slices[0].add(head.slices[s]);
    const Sums& sums = head.slices[0];
    std::vector<std::complex<double>> matrix(static_cast<size_t>(entries) * entries);
    std::vector<std::complex<double>> rhs(static_cast<size_t>(entries) * half);
    for (int l = 0; l < entries; ++l) {
      double own = 0.0;
      for (int m = 0; m < entries; ++m) {
        const double down = sums.joint[static_cast<size_t>(l) * entries + m];
        const double across = sums.joint[static_cast<size_t>(m) * entries + l];
        matrix[static_cast<size_t>(l) * entries + m] = {0.0, down - across};
        own += down + across;
      }
      matrix[static_cast<size_t>(l) * entries + l] = own;
      const double* u = sums.moments.data() + static_cast<size_t>(l) * d;
      const double* v = u + static_cast<size_t>(entries) * d;
      for (int j = 0; j < half; ++j) {
        // u x - i v x
        rhs[static_cast<size_t>(l) * half + j] = {u[j] + v[half + j], u[half + j] - v[j]};
      }
    }
    commvq::solve_hermitian(entries, matrix, half, rhs);
    for (int l = 0; l < entries; ++l) {
      float* z = head.table.data() + static_cast<size_t>(l) * d;
      for (int j = 0; j < half; ++j) {
        const std::complex<double> value = rhs[static_cast<size_t>(l) * half + j];
        z[j] = half_to_float(float_to_half(static_cast<float>(value.real())));
        z[half + j] = half_to_float(float_to_half(static_cast<float>(value.imag())));
      }
    }
  }

  // After the assignment of all slices: the next table, or the end of the stage.
  void advance(int h) {
    Head& head = heads[h];
    double squared_error = 0.0;
    for (const Sums& sums : head.slices) squared_error += sums.squared_error;
    const double error = squared_error / (static_cast<double>(tokens) * shape.head_dim);
    // The first table is a guess that is not rounded to float16: only what was fitted may be kept.
    const bool fitted = head.step > 0;
    bool last = head.step >= steps;
    if (fitted && error < head.best_error) {
      head.best_error = error;
      head.best = head.table;
    } else if (fitted && error - head.best_error <= kStill * head.best_error) {
      last = true;
    }
    if (!last) {
      fit(head);
      ++head.step;
      return;
    }
    // Where no error was a number there is none to keep, but there must be a table.
    if (head.best.empty()) head.best = head.table;
    head.done.insert(head.done.end(), head.best.begin(), head.best.end());
    subtract(head, Stage(shape.entries, shape.head_dim, head.best.data()));
    measure(head);
    if (head.done.size() == shape.stages * shape.table_floats()) {
      finish(head);
    } else {
      begin_stage(h);
    }
  }

  // Rounds the tables to bytes, from the first stage on, and fits each to what the rounded ones before it leave: the
  // points as they came, to which all that was subtracted is added again, less those.
  void finish(Head& head) const {
    const size_t size = shape.table_floats();
    for (int s = 0; s < shape.stages; ++s) {
      const Stage stage(shape.entries, shape.head_dim, head.done.data() + s * size);
      for (int64_t t = 0; t < tokens; ++t) {
        stage.add(head.codes[static_cast<size_t>(s * tokens + t)], 1.0f, head.points.data() + t * shape.head_dim);
      }
    }
    const commvq::ByteUnits units(shape, head.done.data());
    head.codes.clear();
    head.errors.resize(1);
    head.step = steps;  // as cold as it gets
    for (int s = 0; s < shape.stages; ++s) {
      float* const table = head.done.data() + s * size;
      head.table.assign(table, table + size);
      if (s > 0) {
        const Stage stage(shape.entries, shape.head_dim, table);
        for (int slice = 0; slice < kSlices; ++slice) assign_slice(head, stage, slice);
        fit(head);
      }
      units.round(s, head.table.data());
      std::copy(head.table.begin(), head.table.end(), table);
      subtract(head, Stage(shape.entries, shape.head_dim, table));
      measure(head);
    }
    std::vector<float>().swap(head.points);
    std::vector<uint16_t>().swap(head.codes);
    head.best_error = head.errors.back();
    head.finished = true;
  }

  bool step() {
    if (!started) start();
    std::vector<int> open;
    std::vector<Stage> stages;
    for (int h = 0; h < shape.kv_heads; ++h) {
      if (heads[h].finished) continue;
      open.push_back(h);
      stages.emplace_back(shape.entries, shape.head_dim, heads[h].table.data());
    }
    if (open.empty()) return false;
    const int count = static_cast<int>(open.size());
    ThreadPool::shared().run(count * kSlices, [&](int task) {
      assign_slice(heads[open[task / kSlices]], stages[task / kSlices], task % kSlices);
    });
    ThreadPool::shared().run(count, [&](int i) { advance(open[i]); });
    return true;
  }

  void subtract(Head& head, const Stage& stage) const {
    const int d = shape.head_dim;
    std::vector<float> products(static_cast<size_t>(kSumPoints) * 2 * shape.entries);
    int codes[kSumPoints];
    float scores[kSumPoints];
    for (int64_t first = 0; first < tokens; first += kSumPoints) {
      const int count = static_cast<int>(std::min<int64_t>(kSumPoints, tokens - first));
      float* rows = head.points.data() + first * d;
      stage.find(kernels, rows, d, count, products.data(), codes, scores);
      for (int i = 0; i < count; ++i) stage.add(codes[i], -1.0f, rows + static_cast<size_t>(i) * d);
      head.codes.insert(head.codes.end(), codes, codes + count);
    }
  }
};

KeyTrainer::KeyTrainer() = default;
KeyTrainer::~KeyTrainer() = default;
void KeyTrainer::destroy(KeyTrainer* trainer) { delete trainer; }

KeyTrainer* KeyTrainer::create(int kv_heads, int head_dim, RopePairs pairs, int stages, int entries, int64_t seed) {
  const commvq::KeyShape shape = {kv_heads, head_dim, pairs, stages, entries};
  shape.check();
  std::unique_ptr<KeyTrainer> trainer(new KeyTrainer());
  trainer->impl_ = std::make_unique<Impl>();
  trainer->impl_->shape = shape;
  trainer->impl_->seed = static_cast<uint64_t>(seed);
  trainer->impl_->heads.resize(kv_heads);
  return trainer.release();
}

void KeyTrainer::set_steps(int steps) {
  require_range("steps", steps, 1, 10000);
  if (impl_->started) refuse("steps are set before the first one");
  impl_->steps = steps;
}

void KeyTrainer::set_temperatures(double first, double second, double last) {
  for (const double t : {first, second, last}) commvq::require_temperature(t);
  if (impl_->started) refuse("temperatures are set before the first step");
  impl_->first_temperature = first;
  impl_->second_temperature = second;
  impl_->last_temperature = last;
}

void KeyTrainer::add(const float* rows, int64_t tokens) {
  require_pointer("rows", rows);
  require_range("tokens", tokens, 1, std::numeric_limits<int>::max());
  if (impl_->started) refuse("keys are added before the first step");
  const commvq::KeyShape& shape = impl_->shape;
  const size_t width = shape.width();
  require_rows(rows, tokens, static_cast<int64_t>(width));
  require_range("tokens in all", impl_->tokens + tokens, 1, std::numeric_limits<int>::max());
  std::vector<float> divisors(static_cast<size_t>(tokens));
  for (int64_t t = 0; t < tokens; ++t) {
    commvq::token_norm(rows + t * width, width, &divisors[static_cast<size_t>(t)]);
  }
  const size_t d = static_cast<size_t>(shape.head_dim);
  ThreadPool::shared().run(shape.kv_heads, [&](int h) {
    std::vector<float>& points = impl_->heads[h].points;
    points.resize(static_cast<size_t>(impl_->tokens + tokens) * d);
    float* to = points.data() + static_cast<size_t>(impl_->tokens) * d;
    for (int64_t t = 0; t < tokens; ++t, to += d) {
      to_planar(shape.pairs, shape.head_dim, rows + t * width + h * d, to);
      for (size_t c = 0; c < d; ++c) to[c] /= divisors[static_cast<size_t>(t)];
    }
  });
  impl_->tokens += tokens;
}

bool KeyTrainer::step() {
  impl_->whole.require();
  if (!impl_->started) impl_->require_tokens();
  bool more = false;
  impl_->whole.run([&] { more = impl_->step(); });
  return more;
}

double KeyTrainer::done() const {
  double sum = 0.0;
  for (const Impl::Head& head : impl_->heads) {
    sum += static_cast<double>(head.done.size() / impl_->shape.table_floats());
    if (!head.finished) sum += static_cast<double>(head.step) / (impl_->steps + 1);
  }
  return sum / (static_cast<double>(impl_->shape.kv_heads) * impl_->shape.stages);
}

int64_t KeyTrainer::tokens() const { return impl_->tokens; }

int KeyTrainer::stage(int kv_head) const {
  require_range("kv_head", kv_head, 0, impl_->shape.kv_heads - 1);
  return static_cast<int>(impl_->heads[kv_head].done.size() / impl_->shape.table_floats());
}

double KeyTrainer::error(int kv_head, int stage) const {
  impl_->whole.require();
  require_range("stage", stage, 0, this->stage(kv_head));
  if (!impl_->started) refuse("errors are known after the first step");
  return impl_->heads[kv_head].errors[stage];
}

double KeyTrainer::stage_error(int kv_head) const {
  require_range("kv_head", kv_head, 0, impl_->shape.kv_heads - 1);
  return impl_->heads[kv_head].best_error;
}

void KeyTrainer::read_tables(float* out) const {
  require_pointer("out", out);
  impl_->whole.require();
  if (!impl_->started) refuse("there are no tables before the first step");
  const size_t size = impl_->shape.stages * impl_->shape.table_floats();
  for (const Impl::Head& head : impl_->heads) {
    std::fill(std::copy(head.done.begin(), head.done.end(), out), out + size, 0.0f);
    out += size;
  }
}

}  // namespace kvasir
