#include "calibrate/commvq/byte_tables.h"

#include <algorithm>
#include <cmath>

#include "codecs/commvq/model.h"

namespace kvasir::commvq {
namespace {

constexpr int kHalfBits = 11;  // of a float16 number
constexpr float kMostHalf = 65504.0f;
constexpr int kWideStages = 1;  // that have two bytes, in units of the step itself

// The greatest number of units that an entry can be.
int most_of(int stage) { return stage < kWideStages ? kMostByte << kMostLevel : kMostByte; }

// Steps are 4, 5, 6 or 7 times a power of two: times a byte, that is a float16 number.
double step_above(double least) {
  int exponent;
  const double fraction = std::frexp(std::max(least, std::ldexp(1.0, -22)), &exponent);  // 0.5 .. 1
  return std::ldexp(std::ceil(8.0 * fraction), exponent - 3);
}

// Chooses steps and levels by descent: one level up or down at a time, while less is lost.
class UnitChoice {
 public:
  UnitChoice(const KeyShape& shape, const float* tables)
      : stages_(shape.stages),
        pairs_(shape.head_dim / 2),
        peaks_(static_cast<size_t>(stages_) * pairs_, 0.0),
        left_(stages_, 0.0),
        levels_(stages_, 0) {
    for (int s = 0; s < stages_; ++s) {
      for (int e = 0; e < shape.entries; ++e, tables += shape.head_dim) {
        for (int c = 0; c < shape.head_dim; ++c) {
          double& peak = peaks_[static_cast<size_t>(s) * pairs_ + c % pairs_];
          peak = std::max(peak, std::fabs(static_cast<double>(tables[c])));
          left_[s] += static_cast<double>(tables[c]) * tables[c];
        }
      }
    }
    // Later stages encode an error as they encode everything, down to the size of the last one.
    for (double& power : left_) power = power > 0.0 ? std::min(1.0, left_.back() / power) : 0.0;
    start();
    descend();
  }

  const std::vector<double>& steps() const { return steps_; }
  const std::vector<int>& levels() const { return levels_; }

 private:
  double peak(int stage, int pair) const { return peaks_[static_cast<size_t>(stage) * pairs_ + pair] / most_of(stage); }

  // Levels by how much larger than the last stage's a stage's entries are, in the middle one of the pairs.
  void start() {
    std::vector<double> ratios(pairs_);
    for (int s = kWideStages; s < stages_; ++s) {
      for (int p = 0; p < pairs_; ++p) {
        const double last = peak(stages_ - 1, p);
        ratios[p] = last > 0.0 ? std::log2(std::max(peak(s, p), 1e-30) / last) : 0.0;
      }
      std::nth_element(ratios.begin(), ratios.begin() + pairs_ / 2, ratios.end());
      levels_[s] = static_cast<int>(std::clamp(std::nearbyint(ratios[pairs_ / 2]), 0.0, 1.0 * kMostLevel));
    }
  }

  void descend() {
    double best = loss();
    for (bool better = true; better;) {
      better = false;
      for (int s = kWideStages; s < stages_; ++s) {
        for (const int change : {-1, 1}) {
          const int level = levels_[s];
          if (level + change < 0 || level + change > kMostLevel) continue;
          levels_[s] += change;
          const double now = loss();
          if (now < best) {
            best = now;
            better = true;
          } else {
            levels_[s] = level;
          }
        }
      }
    }
    loss();
  }

  // Of these levels, with the steps that they need; in units that do not matter.
  double loss() {
    steps_.assign(pairs_, 0.0);
    double steps = 0.0, levels = 0.0;
    for (int p = 0; p < pairs_; ++p) {
      double least = 0.0;
      for (int s = 0; s < stages_; ++s) least = std::max(least, std::ldexp(peak(s, p), -levels_[s]));
      steps_[p] = step_above(least);
      steps += steps_[p] * steps_[p];
    }
    for (int s = 0; s < stages_; ++s) levels += left_[s] * std::ldexp(1.0, 2 * levels_[s]);
    return steps * levels;
  }

  const int stages_, pairs_;
  std::vector<double> peaks_;  // [stages][pairs]
  std::vector<double> left_;   // [stages]: the part of an error that later stages leave
  std::vector<int> levels_;
  std::vector<double> steps_;
};

// The float16 number nearest to x that is a multiple of the unit, and at most so many units.
float nearest_multiple(double x, double unit, int most) {
  const double size = std::min<double>({std::fabs(x) / unit, 1.0 * most, std::floor(kMostHalf / unit)});
  double grid = 1.0;                                            // in units
  while (size >= std::ldexp(grid, kHalfBits - 3)) grid *= 2.0;  // three bits are the step's
  return static_cast<float>(std::copysign(std::nearbyint(size / grid) * grid * unit, x));
}

}  // namespace

ByteUnits::ByteUnits(const KeyShape& shape, const float* tables) : entries_(shape.entries), head_dim_(shape.head_dim) {
  const UnitChoice choice(shape, tables);
  steps_ = choice.steps();
  levels_ = choice.levels();
}

void ByteUnits::round(int stage, float* table) const {
  const int pairs = head_dim_ / 2;
  for (int e = 0; e < entries_; ++e, table += head_dim_) {
    for (int c = 0; c < head_dim_; ++c) {
      table[c] = nearest_multiple(table[c], std::ldexp(steps_[c % pairs], levels_[stage]), most_of(stage));
    }
  }
}

}  // namespace kvasir::commvq
