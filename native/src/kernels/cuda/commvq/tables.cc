#include "kernels/cuda/commvq/tables.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cuda/commvq/params.h"
#include "kernels/cuda/commvq/planes.h"
#include "kernels/cuda/primitives/shared_memory.h"

namespace kvasir::cuda {
namespace {

// One pair of one slice: its entries by stage as whole numbers that are never negative.
class PairColumn {
 public:
  PairColumn(const commvq::KeyModel& model, const KeyTableLayout& layout, int kv_head, int pair, int first_stage,
             int stages)
      : model_(model), layout_(layout), kv_head_(kv_head), pair_(pair), first_stage_(first_stage) {
    std::vector<double> peaks(stages, 0.0);
    if (exists()) {
      for (int s = 0; s < stages; ++s) {
        for (int e = 0; e < layout.entries; ++e) {
          for (int part = 0; part < 2; ++part) peaks[s] = std::max(peaks[s], std::fabs(double{value(s, e, part)}));
        }
      }
    }
    double sum = 0.0;
    for (const double peak : peaks) sum += peak;
    // Rounding up the bias of each stage takes at most one for each.
    step_ = sum > 0.0 ? sum / (kExactBias - stages) : 1.0;
    int rest = kExactBias;
    for (const double peak : peaks) {
      biases_.push_back(static_cast<int>(std::ceil(peak / step_)));
      rest -= biases_.back();
    }
    biases_[0] += rest;
  }

  double step() const { return step_; }
  bool exists() const { return pair_ < layout_.head_dim / 2; }
  int number(int stage, int entry, int part) const {
    const double rounded = exists() ? std::nearbyint(double{value(stage, entry, part)} / step_) : 0.0;
    return static_cast<int>(rounded) + biases_[stage];
  }

 private:
  float value(int stage, int entry, int part) const {
    return key_entry(model_, kv_head_, first_stage_ + stage, entry, pair_ + part * (layout_.head_dim / 2));
  }

  const commvq::KeyModel& model_;
  const KeyTableLayout& layout_;
  const int kv_head_, pair_, first_stage_;
  double step_;
  std::vector<int> biases_;
};

}  // namespace

cudaError_t plan_key_tables(const commvq::KeyModel& model, KeyPrecision precision, KeyTableLayout* layout) {
  int most_shared = 0;
  cudaError_t error = most_shared_memory(&most_shared);
  if (error != cudaSuccess) return error;
  KeyTableLayout made = {};
  made.kv_heads = model.page.kv_heads;
  made.head_dim = model.head_dim;
  made.stages = model.page.stages;
  made.entries = model.entries;
  made.index_bits = model.page.index_bits;
  made.planes = made.stages;
  made.element_bytes = precision == KeyPrecision::kExact ? 2 : 1;
  if (made.fast()) {
    error = plan_plane_tables(model, most_shared, &made);
    if (error == cudaSuccess) *layout = made;
    return error;
  }
  const int pairs = model.head_dim / 2;
  made.chunks = kMaxSlicePairs / made.chunk_pairs();
  while (made.chunks > 1 && made.slice_pairs() / 2 >= pairs) made.chunks /= 2;
  auto fits = [&](int stages) {
    made.slice_stages = stages;
    return score_shared_bytes(made) <= most_shared;
  };
  const int most = std::min(made.stages, kMaxSliceStages);
  while (made.chunks > 1 && !fits(most)) made.chunks /= 2;
  int stages = most;
  while (stages > 1 && !fits(stages)) --stages;
  if (!fits(stages)) return cudaErrorInvalidValue;
  made.cut(stages);
  made.pair_slices = (pairs + made.slice_pairs() - 1) / made.slice_pairs();
  *layout = made;
  return cudaSuccess;
}

void pack_key_tables(const commvq::KeyModel& model, const KeyTableLayout& layout, const double* frequencies,
                     double magnitude, uint8_t* bytes) {
  if (layout.fast()) return pack_plane_tables(model, layout, frequencies, magnitude, bytes);
  std::memset(bytes, 0, layout.bytes());
  const int pairs = layout.slice_pairs();
  for (int head = 0; head < layout.kv_heads; ++head) {
    for (int ps = 0; ps < layout.pair_slices; ++ps) {
      for (int ss = 0; ss < layout.stage_slices; ++ss) {
        uint8_t* const slice = bytes + layout.slice_offset(head, ps, ss);
        auto* const turns = reinterpret_cast<double*>(slice);
        auto* const steps = reinterpret_cast<float*>(turns + pairs);
        steps[pairs] = static_cast<float>(magnitude);
        const int stages = layout.stages_of(ss);
        for (int p = 0; p < pairs; ++p) {
          const PairColumn column(model, layout, head, ps * pairs + p, ss * layout.slice_stages, stages);
          turns[p] = column.exists() ? frequencies[ps * pairs + p] / (2.0 * M_PI) : 0.0;
          steps[p] = static_cast<float>(column.step() * magnitude);
          for (int s = 0; s < stages; ++s) {
            for (int e = 0; e < layout.entries; ++e) {
              uint8_t* row =
                  slice + layout.head_bytes() + (static_cast<size_t>(s) * kEntryStride + e) * layout.row_bytes();
              for (int part = 0; part < 2; ++part) {
                const int number = column.number(s, e, part);
                uint8_t* to = row + (2 * p + part) * layout.element_bytes;
                to[0] = static_cast<uint8_t>(number & 255);
                to[1] = static_cast<uint8_t>(number >> 8);
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace kvasir::cuda
