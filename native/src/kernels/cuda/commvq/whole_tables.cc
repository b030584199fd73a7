#include "kernels/cuda/commvq/whole_tables.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "kernels/cuda/commvq/table_layout.h"

namespace kvasir::cuda {
namespace {

constexpr int kLeastExponent = -24;  // float16 numbers are whole numbers of 2^-24

// Entries of a stage and pair, as whole numbers of 2^kLeastExponent.
struct Numbers {
  int64_t divisor = 0;  // greatest common one; 0: all are 0
  int64_t largest = 0;

  Numbers(const commvq::KeyModel& model, int kv_head, int stage, int pair) {
    for (const int channel : {pair, pair + model.head_dim / 2}) {
      for (int e = 0; e < model.entries; ++e) {
        const float entry = key_entry(model, kv_head, stage, e, channel);
        const auto number = static_cast<int64_t>(std::ldexp(std::fabs(static_cast<double>(entry)), -kLeastExponent));
        if (divisor == 0 || number % divisor != 0) divisor = std::gcd(divisor, number);
        largest = std::max(largest, number);
      }
    }
  }
};

int twos_of(int64_t number) {
  int twos = 0;
  for (; number % 2 == 0; number /= 2) ++twos;
  return twos;
}

// Exponents that differ by no more than bounds say: x[to] - x[from] <= bound for each of them.
class Differences {
 public:
  explicit Differences(int count) : exponents_(count, 0) {}
  void add(int to, int from, int bound) { bounds_.push_back({to, from, bound}); }
  // Lowers what is too high, until nothing is; false where that has no end.
  bool solve() {
    for (size_t round = 0; round <= exponents_.size(); ++round) {
      bool changed = false;
      for (const Bound& bound : bounds_) {
        const int most = exponents_[bound.from] + bound.most;
        if (exponents_[bound.to] <= most) continue;
        exponents_[bound.to] = most;
        changed = true;
      }
      if (!changed) return true;
    }
    return false;
  }
  int operator[](int i) const { return exponents_[i]; }

 private:
  struct Bound {
    int to, from, most;
  };
  std::vector<int> exponents_;
  std::vector<Bound> bounds_;
};

}  // namespace

// With unknown exponents, level[s] of a stage and step[p] of a pair, an entry's unit is odd[p] * 2^(level[s] +
// step[p]): it divides their divisor, and the largest entry is at most so many of it. These bound level[s] + step[p]
// from above and from below; with -step[p] as the unknown they are differences.
std::optional<WholeSteps> WholeSteps::find(const commvq::KeyModel& model, int kv_head, const std::vector<bool>& wide) {
  const int stages = model.page.stages, pairs = model.head_dim / 2;
  const int base = stages + pairs;  // the exponent that all levels count from
  Differences exponents(base + 1);
  for (int s = 0; s < stages; ++s) {
    exponents.add(base, s, 0);
    exponents.add(s, base, wide[s] ? 0 : kHighLevel);
  }
  std::vector<int64_t> odds(pairs);
  for (int p = 0; p < pairs; ++p) {
    std::vector<Numbers> numbers;
    for (int s = 0; s < stages; ++s) numbers.emplace_back(model, kv_head, s, p);
    int64_t& odd = odds[p];
    for (const Numbers& each : numbers) odd = std::gcd(odd, each.divisor);
    if (odd == 0) continue;  // a pair of nothing
    odd >>= twos_of(odd);
    for (int s = 0; s < stages; ++s) {
      if (numbers[s].divisor == 0) continue;
      const int64_t most = commvq::kMostByte << (wide[s] ? kHighLevel : 0);
      int least = 0;
      while ((most * odd << least) < numbers[s].largest) ++least;
      const int greatest = twos_of(numbers[s].divisor);
      if (least > greatest) return std::nullopt;
      exponents.add(s, stages + p, greatest);
      exponents.add(stages + p, s, -least);
    }
  }
  if (!exponents.solve()) return std::nullopt;
  WholeSteps found;
  for (int s = 0; s < stages; ++s) found.levels.push_back(exponents[s] - exponents[base]);
  for (int p = 0; p < pairs; ++p) {
    const int step = exponents[base] - exponents[stages + p] + kLeastExponent;
    found.steps.push_back(odds[p] == 0 ? 1.0 : std::ldexp(static_cast<double>(odds[p]), step));
  }
  return found;
}

}  // namespace kvasir::cuda
