#include "kernels/cuda/commvq/planes.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

namespace kvasir::cuda {
namespace {

constexpr double kMostByte = commvq::kMostByte;
// What two planes hold: 2^6 * 127 and a low part that stays within a byte; or 2^4 * 128, where bytes also make up for
// half bytes of -8 .. 7 that are not theirs.
constexpr double kMostOfTwo = kMostByte * (1 << kHighLevel);
constexpr double kMostWithLow = 120.0 * (1 << kLowBits) - 1.0;
constexpr double kWorstPair = 4.0;  // what the worst pair may lose, in units of what is lost on average
// Pairs that hardly vary count as if they had this part of the average variance: a query is not that much larger there.
constexpr double kLeastVariance = 1.0 / 16.0;

}  // namespace

// Sizes of a model's entries: the largest of each stage and pair, and what the keys' components vary by; or the steps
// that they are whole numbers of.
class TableSizes {
 public:
  explicit TableSizes(const commvq::KeyModel& model)
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
    find_whole(model);
  }

  const double* peaks_of(int stage) const { return &peaks[static_cast<size_t>(stage) * heads * pairs]; }

  const int heads, stages, pairs;
  std::vector<double> peaks;      // [stages][kv_heads][pairs]
  std::vector<double> variances;  // [kv_heads][pairs]
  std::vector<double> profile;    // [stages]: peaks over standard deviations, root mean square over pairs
  std::vector<int> by_size;       // stages, those with the largest entries first
  std::vector<WholeSteps> whole;  // [kv_heads], or empty where entries are of no such kind
  bool whole_two = false;         // whether the largest stage has two planes then

 private:
  // With one plane a stage, or two for the largest.
  void find_whole(const commvq::KeyModel& model) {
    std::vector<bool> wide(stages, false);
    for (const bool two : {false, true}) {
      wide[by_size.front()] = whole_two = two;
      for (int h = 0; h < heads; ++h) {
        std::optional<WholeSteps> found = WholeSteps::find(model, h, wide);
        if (!found) break;
        whole.push_back(std::move(*found));
      }
      if (static_cast<int>(whole.size()) == heads) return;
      whole.clear();
    }
  }

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

namespace {

// A choice of planes: the `twos` stages with the largest entries have two.
struct Choice {
  std::vector<int> levels;  // of stages with one plane; -1 for those with two
  double loss, worst_loss;

  // At most 1 where it keeps what is promised.
  double quality() const { return std::max(loss, worst_loss / kWorstPair) / kPlaneTolerance; }
};

std::vector<double> steps_of(const TableSizes& sizes, const std::vector<int>& levels, bool low) {
  std::vector<double> steps(sizes.variances.size(), 0.0);
  for (int s = 0; s < sizes.stages; ++s) {
    const double most = levels[s] < 0 ? (low ? kMostWithLow : kMostOfTwo) : kMostByte * (1 << levels[s]);
    for (size_t i = 0; i < steps.size(); ++i) steps[i] = std::max(steps[i], sizes.peaks_of(s)[i] / most);
  }
  return steps;
}

Choice judged(const TableSizes& sizes, std::vector<int> levels, bool low) {
  Choice choice = {std::move(levels), 0.0, 0.0};
  double squares = 0.0;  // of all steps that a key's component is rounded to
  for (const int level : choice.levels) squares += 2.0 * (level < 0 ? 1.0 : std::pow(4.0, level));
  const std::vector<double> steps = steps_of(sizes, choice.levels, low);
  for (size_t i = 0; i < steps.size(); ++i) {
    const double loss = steps[i] * steps[i] / 12.0 * squares / sizes.variances[i];
    choice.loss += loss / static_cast<double>(steps.size());
    choice.worst_loss = std::max(choice.worst_loss, loss);
  }
  return choice;
}

// The best levels for so many stages of two planes. Levels follow the sizes of stages; where they begin is tried out.
Choice best_choice(const TableSizes& sizes, int twos, bool low) {
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
    Choice choice = judged(sizes, std::move(levels), low);
    if (best.levels.empty() || choice.quality() < best.quality()) best = std::move(choice);
  }
  return best;
}

}  // namespace

PlanePlan::PlanePlan(const commvq::KeyModel& model, const KeyTableLayout& layout)
    : PlanePlan(TableSizes(model), layout.stage_slices == 1 ? layout.planes : 0, layout.low_planes > 0,
                layout.folded_planes > 0) {}

PlanePlan::PlanePlan(const TableSizes& sizes, int most, bool low, bool folded)
    : stages_(sizes.stages), pairs_(sizes.pairs), folded_(folded) {
  if (plan_whole(sizes)) return;
  int too_few = -1, enough = sizes.stages;
  while (enough - too_few > 1) {
    const int twos = (too_few + enough) / 2;
    (best_choice(sizes, twos, low).quality() <= 1.0 ? enough : too_few) = twos;
  }
  const int full = low      ? plane_rounds(enough) * kRoundPlanes
                   : folded ? enough
                            : std::min(plane_rounds(sizes.stages + enough) * kRoundPlanes, most) - sizes.stages;
  const Choice choice = best_choice(sizes, std::max(enough, std::min(full, sizes.stages)), low);
  loss_ = choice.loss;
  worst_loss_ = choice.worst_loss;
  steps_ = steps_of(sizes, choice.levels, low);
  for (double& step : steps_) step = step > 0.0 ? step : 1.0;
  for (int h = 0; h < sizes.heads; ++h) levels_.insert(levels_.end(), choice.levels.begin(), choice.levels.end());
  if (low) high_level_ = kLowBits;
  for (int s = 0; s < sizes.stages; ++s) add(s, choice.levels[s] < 0, low);
}

// Nothing is lost, so no stage gets a plane that it does not need.
bool PlanePlan::plan_whole(const TableSizes& sizes) {
  if (sizes.whole.empty()) return false;
  for (const WholeSteps& head : sizes.whole) {
    steps_.insert(steps_.end(), head.steps.begin(), head.steps.end());
    levels_.insert(levels_.end(), head.levels.begin(), head.levels.end());
  }
  for (int s = 0; s < sizes.stages; ++s) add(s, sizes.whole_two && s == sizes.by_size.front(), false);
  return true;
}

void PlanePlan::add(int stage, bool two, bool low) {
  planes_.push_back({stage, two ? Plane::kHigh : Plane::kOnly});
  if (two) (low ? low_planes_ : planes_).push_back({stage, Plane::kLow});
}

namespace {

int byte_of(const PlanePlan::Plane& plane, int level, double entry, double step) {
  if (plane.part == PlanePlan::Plane::kOnly) {
    return static_cast<int>(std::nearbyint(entry / (step * (1 << level))));
  }
  const int number = static_cast<int>(std::nearbyint(entry / step));
  const int high = (number + (1 << kHighLevel) / 2) >> kHighLevel;
  return plane.part == PlanePlan::Plane::kHigh ? high : number - (high << kHighLevel);
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

// The layout with all planes in one slice.
KeyTableLayout in_one_slice(KeyTableLayout layout, const PlanePlan& plan, bool folded) {
  layout.planes = layout.slice_stages = static_cast<int>(plan.planes().size());
  layout.low_planes = static_cast<int>(plan.low_planes().size());
  layout.stage_slices = 1;
  layout.folded_planes = folded ? layout.planes % kRoundPlanes : 0;
  return layout;
}

bool fits(const KeyTableLayout& layout, int most_shared) {
  return plane_rounds(layout) * kRoundPlanes <= kMaxSliceStages && plane_shared_bytes(layout) <= most_shared;
}

}  // namespace

cudaError_t plan_plane_tables(const commvq::KeyModel& model, int most_shared, KeyTableLayout* layout) {
  layout->chunks = kPlaneRowBytes / kTableChunkBytes;
  layout->pair_slices = (model.head_dim / 2 + kMaxSlicePairs - 1) / kMaxSlicePairs;
  const int most = most_planes(*layout, most_shared);
  if (most == 0) return cudaErrorInvalidValue;
  const TableSizes sizes(model);
  const PlanePlan bytes(sizes, most, false, false);
  layout->planes = static_cast<int>(bytes.planes().size());
  layout->low_planes = 0;
  layout->folded_planes = 0;
  layout->cut(most);
  // What fits into one slice is better than slices, and the cheapest of that is best.
  int least = layout->stage_slices > 1 ? INT_MAX : bytes.cost();
  const bool can_be_low = plane_swap(plane_blocks(model.head_dim)) == 2;
  for (const auto& [low, folded] : {std::pair{false, true}, {true, true}, {true, false}}) {
    if (low && !can_be_low) continue;
    const PlanePlan plan(sizes, most, low, folded);
    const KeyTableLayout slice = in_one_slice(*layout, plan, folded);
    if (folded && (slice.folded_planes == 0 || slice.folded_planes == 3 || slice.planes < kRoundPlanes)) continue;
    if (plan.cost() >= least || !fits(slice, most_shared)) continue;
    *layout = slice;
    least = plan.cost();
  }
  return cudaSuccess;
}

namespace {

// Packs planes of one slice.
class SlicePacker {
 public:
  SlicePacker(const commvq::KeyModel& model, const KeyTableLayout& layout, const PlanePlan& plan, int head,
              int first_pair, uint8_t* slice)
      : model_(model),
        layout_(layout),
        plan_(plan),
        head_(head),
        first_pair_(first_pair),
        slice_pairs_(std::min(model.head_dim / 2 - first_pair, kMaxSlicePairs)),
        slice_(slice),
        rows_(slice + layout.head_bytes()) {}

  // Plane `i` of the slice; the first ones may be folded.
  void put(int i, const PlanePlan::Plane& plane) {
    const int folded = layout_.folded_planes;
    if (i >= folded) {
      label(i - folded + layout_.folded_tables(), plane);
      return put_table(i - folded + layout_.folded_tables(), plane);
    }
    label(i, plane);
    for (int copy = i; copy < kRoundPlanes; copy += folded) put_table(copy, plane);
  }

  // Low plane `i`.
  void put_low(int i, const PlanePlan::Plane& plane) {
    label((plane_rounds(layout_) - plane_rounds(layout_.low_planes)) * kRoundPlanes + i, plane);
    uint8_t* const rows = rows_ + layout_.slice_tables() * kPlaneBytes + low_plane_offset(i);
    for (int e = 0; e < layout_.entries; ++e) {
      for (int byte = 0; byte < 2 * slice_pairs_; ++byte) {
        rows[e * kPlaneRowBytes + byte / (2 * kBlock) * kBlock + byte % kBlock] |=
            static_cast<uint8_t>(low_bits(plane, e, byte) << (second(byte) ? kLowBits : 0));
      }
    }
  }

 private:
  static constexpr int kBlock = 2 * kPlaneBlockPairs;
  static bool second(int byte) { return byte / kBlock % 2 != 0; }

  void label(int i, const PlanePlan::Plane& plane) {
    slice_[kPlaneStagesAt + i] = static_cast<uint8_t>(plane.stage);
    slice_[kPlaneLevelsAt + i] = static_cast<uint8_t>(plan_.level(head_, plane));
  }

  void put_table(int i, const PlanePlan::Plane& plane) {
    uint8_t* const rows = rows_ + plane_offset(i, plane_swap(plane_blocks(model_.head_dim)));
    const bool with_low = layout_.low_planes > 0 && plane.part == PlanePlan::Plane::kHigh;
    for (int e = 0; e < layout_.entries; ++e) {
      for (int byte = 0; byte < 2 * slice_pairs_; ++byte) {
        rows[e * kPlaneRowBytes + byte] = static_cast<uint8_t>(
            with_low ? high_byte(plane, e, byte)
                     : byte_of(plane, plan_.level(head_, plane), entry(plane, e, byte), step(byte)));
      }
    }
  }

  double step(int byte) const { return plan_.step(head_, first_pair_ + byte / 2); }
  double entry(const PlanePlan::Plane& plane, int e, int byte) const {
    return key_entry(model_, head_, plane.stage, e, first_pair_ + byte / 2 + byte % 2 * (model_.head_dim / 2));
  }
  int number(const PlanePlan::Plane& plane, int e, int byte) const {
    return static_cast<int>(std::nearbyint(entry(plane, e, byte) / step(byte)));
  }
  int low_bits(const PlanePlan::Plane& plane, int e, int byte) const {
    return number(plane, e, byte) & ((1 << kLowBits) - 1);
  }
  // The first of two blocks makes up for the second one's half byte, a signed one.
  int high_byte(const PlanePlan::Plane& plane, int e, int byte) const {
    const int high = number(plane, e, byte) >> kLowBits;
    if (second(byte) || byte + kBlock >= 2 * slice_pairs_) return high;
    constexpr int kSign = 1 << (kLowBits - 1);
    return high - ((low_bits(plane, e, byte + kBlock) ^ kSign) - kSign);
  }

  const commvq::KeyModel& model_;
  const KeyTableLayout& layout_;
  const PlanePlan& plan_;
  const int head_, first_pair_, slice_pairs_;
  uint8_t* const slice_;
  uint8_t* const rows_;
};

}  // namespace

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
        SlicePacker packer(model, layout, plan, head, first_pair, slice);
        for (int i = 0; i < layout.stages_of(ss); ++i) {
          packer.put(i, plan.planes()[static_cast<size_t>(ss) * layout.slice_stages + i]);
        }
        for (int i = 0; i < layout.low_planes; ++i) packer.put_low(i, plan.low_planes()[i]);
      }
    }
  }
}

}  // namespace kvasir::cuda
