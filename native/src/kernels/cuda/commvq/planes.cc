#include "kernels/cuda/commvq/planes.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvasir::cuda {
namespace {

constexpr double kMostByte = 127.0;
// What two planes hold: 2^6 * 127 and a low part that stays within a byte.
constexpr double kMostOfTwo = 127.0 * (1 << kHighLevel);
constexpr double kWorstPair = 4.0;  // what the worst pair may lose, in units of what is lost on average
// Pairs that hardly vary count as if they had this part of the average variance: a query is not that much larger there.
constexpr double kLeastVariance = 1.0 / 16.0;

// Sizes of a model's entries: the largest of each stage and pair, and what the keys' components vary by.
class Sizes {
 public:
  explicit Sizes(const commvq::KeyModel& model)
      : heads(model.page.kv_heads),
        stages(model.page.stages),
        pairs(model.head_dim / 2),
        peaks(static_cast<size_t>(stages) * heads * pairs),
        variances(static_cast<size_t>(heads) * pairs) {
    for (int h = 0; h < heads; ++h) {
      for (int j = 0; j < pairs; ++j) {
        for (int s = 0; s < stages; ++s) add(model, h, s, j);
      }
      double* const row = &variances[static_cast<size_t>(h) * pairs];
      double sum = 0.0;
      for (int j = 0; j < pairs; ++j) sum += row[j];
      for (int j = 0; j < pairs; ++j) row[j] = std::max(row[j], kLeastVariance * sum / pairs);
      if (sum == 0.0) std::fill(row, row + pairs, 1.0);  // keys that do not vary at all
    }
    for (int s = 0; s < stages; ++s) {
      double sum = 0.0;
      for (size_t i = 0; i < variances.size(); ++i) sum += peaks_of(s)[i] * peaks_of(s)[i] / variances[i];
      profile.push_back(std::sqrt(sum / static_cast<double>(variances.size())));
      by_size.push_back(s);
    }
    std::stable_sort(by_size.begin(), by_size.end(), [&](int a, int b) { return profile[a] > profile[b]; });
  }

  const double* peaks_of(int stage) const { return &peaks[static_cast<size_t>(stage) * heads * pairs]; }

  const int heads, stages, pairs;
  std::vector<double> peaks;      // [stages][kv_heads][pairs]
  std::vector<double> variances;  // [kv_heads][pairs]
  std::vector<double> profile;    // [stages]: peaks over standard deviations, root mean square over pairs
  std::vector<int> by_size;       // stages, those with the largest entries first

 private:
  void add(const commvq::KeyModel& model, int h, int s, int j) {
    double& peak = peaks[(static_cast<size_t>(s) * heads + h) * pairs + j];
    // Real parts of keys are sums of entries' real and imaginary parts, and so are imaginary parts.
    for (const int channel : {j, j + pairs}) {
      double sum = 0.0, squares = 0.0;
      for (int e = 0; e < model.entries; ++e) {
        const double x = key_entry(model, h, s, e, channel);
        peak = std::max(peak, std::fabs(x));
        sum += x;
        squares += x * x;
      }
      const double mean = sum / model.entries;
      variances[static_cast<size_t>(h) * pairs + j] += std::max(0.0, squares / model.entries - mean * mean);
    }
  }
};

// A choice of planes: the `twos` stages with the largest entries have two.
struct Choice {
  std::vector<int> levels;  // of stages with one plane; -1 for those with two
  double loss, worst_loss;

  // At most 1 where it keeps what is promised.
  double quality() const { return std::max(loss, worst_loss / kWorstPair) / kPlaneTolerance; }
};

std::vector<double> steps_of(const Sizes& sizes, const std::vector<int>& levels) {
  std::vector<double> steps(sizes.variances.size(), 0.0);
  for (int s = 0; s < sizes.stages; ++s) {
    const double most = levels[s] < 0 ? kMostOfTwo : kMostByte * (1 << levels[s]);
    for (size_t i = 0; i < steps.size(); ++i) steps[i] = std::max(steps[i], sizes.peaks_of(s)[i] / most);
  }
  return steps;
}

Choice judged(const Sizes& sizes, std::vector<int> levels) {
  Choice choice = {std::move(levels), 0.0, 0.0};
  double squares = 0.0;  // of all steps that a key's component is rounded to
  for (const int level : choice.levels) squares += 2.0 * (level < 0 ? 1.0 : std::pow(4.0, level));
  const std::vector<double> steps = steps_of(sizes, choice.levels);
  for (size_t i = 0; i < steps.size(); ++i) {
    const double loss = steps[i] * steps[i] / 12.0 * squares / sizes.variances[i];
    choice.loss += loss / static_cast<double>(steps.size());
    choice.worst_loss = std::max(choice.worst_loss, loss);
  }
  return choice;
}

// The best levels for so many stages of two planes. Levels follow the sizes of stages; where they begin is tried out.
Choice best_choice(const Sizes& sizes, int twos) {
  const double largest = std::max(sizes.profile[sizes.by_size.front()], 1e-30);
  Choice best = {};
  for (int quarter = 0; quarter <= 4 * 3 * kHighLevel; ++quarter) {
    const double unit = largest * std::exp2(-0.25 * quarter);
    std::vector<int> levels(sizes.stages, -1);
    for (int k = twos; k < sizes.stages; ++k) {
      const int s = sizes.by_size[k];
      const double level = sizes.profile[s] > 0.0 ? std::ceil(std::log2(sizes.profile[s] / unit)) : 0.0;
      levels[s] = static_cast<int>(std::clamp(level, 0.0, static_cast<double>(kHighLevel)));
    }
    Choice choice = judged(sizes, std::move(levels));
    if (best.levels.empty() || choice.quality() < best.quality()) best = std::move(choice);
  }
  return best;
}

}  // namespace

PlanePlan::PlanePlan(const commvq::KeyModel& model, int most) : pairs_(model.head_dim / 2) {
  const Sizes sizes(model);
  int too_few = -1, enough = sizes.stages;
  while (enough - too_few > 1) {
    const int twos = (too_few + enough) / 2;
    (best_choice(sizes, twos).quality() <= 1.0 ? enough : too_few) = twos;
  }
  const int full = plane_rounds(sizes.stages + enough) * kRoundPlanes - sizes.stages;
  const Choice choice = best_choice(sizes, std::max(enough, std::min({full, most - sizes.stages, sizes.stages})));
  loss_ = choice.loss;
  worst_loss_ = choice.worst_loss;
  steps_ = steps_of(sizes, choice.levels);
  for (double& step : steps_) step = step > 0.0 ? step : 1.0;
  for (int s = 0; s < sizes.stages; ++s) {
    if (choice.levels[s] < 0) {
      planes_.push_back({s, kHighLevel, true});
      planes_.push_back({s, 0, true});
    } else {
      planes_.push_back({s, choice.levels[s], false});
    }
  }
}

namespace {

int byte_of(const PlanePlan::Plane& plane, double entry, double step) {
  if (!plane.two) return static_cast<int>(std::nearbyint(entry / (step * (1 << plane.level))));
  const int number = static_cast<int>(std::nearbyint(entry / step));
  const int high = (number + (1 << kHighLevel) / 2) >> kHighLevel;
  return plane.level == kHighLevel ? high : number - (high << kHighLevel);
}

// Most planes of a slice that fit.
int most_planes(KeyTableLayout layout, int most_shared) {
  int planes = kMaxSliceStages;
  for (; planes > 0; --planes) {
    layout.slice_stages = planes;
    if (plane_shared_bytes(layout) <= most_shared) break;
  }
  return planes;
}

}  // namespace

cudaError_t plan_plane_tables(const commvq::KeyModel& model, int most_shared, KeyTableLayout* layout) {
  layout->chunks = kPlaneRowBytes / kTableChunkBytes;
  layout->pair_slices = (model.head_dim / 2 + kMaxSlicePairs - 1) / kMaxSlicePairs;
  const int most = most_planes(*layout, most_shared);
  if (most == 0) return cudaErrorInvalidValue;
  layout->planes = static_cast<int>(PlanePlan(model, most).planes().size());
  layout->cut(most);
  return cudaSuccess;
}

void pack_plane_tables(const commvq::KeyModel& model, const KeyTableLayout& layout, const double* frequencies,
                       double magnitude, uint8_t* bytes) {
  std::memset(bytes, 0, layout.bytes());
  const PlanePlan plan(model, layout);
  const int pairs = model.head_dim / 2;
  for (int head = 0; head < layout.kv_heads; ++head) {
    for (int ps = 0; ps < layout.pair_slices; ++ps) {
      const int first_pair = ps * kMaxSlicePairs, slice_pairs = std::min(pairs - first_pair, kMaxSlicePairs);
      for (int ss = 0; ss < layout.stage_slices; ++ss) {
        uint8_t* const slice = bytes + layout.slice_offset(head, ps, ss);
        auto* const turns = reinterpret_cast<double*>(slice);
        auto* const steps = reinterpret_cast<float*>(turns + kMaxSlicePairs);
        steps[kMaxSlicePairs] = static_cast<float>(magnitude);
        for (int p = 0; p < slice_pairs; ++p) {
          turns[p] = frequencies[first_pair + p] / (2.0 * M_PI);
          steps[p] = static_cast<float>(plan.step(head, first_pair + p) * magnitude);
        }
        for (int i = 0; i < layout.stages_of(ss); ++i) {
          const PlanePlan::Plane& plane = plan.planes()[static_cast<size_t>(ss) * layout.slice_stages + i];
          slice[kPlaneStagesAt + i] = static_cast<uint8_t>(plane.stage);
          slice[kPlaneLevelsAt + i] = static_cast<uint8_t>(plane.level);
          uint8_t* const rows = slice + layout.head_bytes() + static_cast<size_t>(i) * kPlaneBytes;
          for (int e = 0; e < layout.entries; ++e) {
            for (int p = 0; p < slice_pairs; ++p) {
              uint8_t* const to = rows + e * kPlaneRowBytes + 2 * p;
              for (int part = 0; part < 2; ++part) {
                const double entry = key_entry(model, head, plane.stage, e, first_pair + p + part * pairs);
                to[part] = static_cast<uint8_t>(byte_of(plane, entry, plan.step(head, first_pair + p)));
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace kvasir::cuda
