#include "codecs/commvq/fixed_tables.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvasir::commvq {
namespace {

constexpr double kLargest = 32767.0;

// What the choice of units needs to know of one kv head, by pair.
struct Ranges {
  std::vector<std::vector<float>> peaks;  // [stages][pairs], the largest magnitude of either part
  double power = 0.0;                     // of a key, over all its channels
};

Ranges ranges_of(const KeyCodebook::Impl& codebook, int kv_head) {
  const KeyShape& shape = codebook.shape;
  const int half = shape.head_dim / 2;
  Ranges ranges;
  for (int s = 0; s < shape.stages; ++s) {
    std::vector<float> peaks(half, 0.0f);
    double squares = 0.0;
    for (int e = 0; e < shape.entries; ++e) {
      const float* z = codebook.stage(kv_head, s).vector(e);
      for (int c = 0; c < shape.head_dim; ++c) {
        peaks[c % half] = std::max(peaks[c % half], std::fabs(z[c]));
        squares += static_cast<double>(z[c]) * z[c];
      }
    }
    ranges.peaks.push_back(std::move(peaks));
    ranges.power += 2.0 * squares / shape.entries;  // z_a and i z_b
  }
  return ranges;
}

// By pair. Rounding may lift each entry of a run by half a unit.
std::vector<double> units_of(const Ranges& ranges, int run) {
  const int stages = static_cast<int>(ranges.peaks.size());
  std::vector<double> units(ranges.peaks[0].size(), 0.0);
  for (size_t j = 0; j < units.size(); ++j) {
    for (int first = 0; first < stages; first += run) {
      double most = 0.0;
      for (int s = first; s < std::min(stages, first + run); ++s) most += ranges.peaks[s][j];
      units[j] = std::max(units[j], most / (kLargest - run));
    }
  }
  return units;
}

double noise_of(const Ranges& ranges, const std::vector<double>& units) {
  double noise = 0.0;
  for (const double unit : units) noise += 2.0 * 2.0 * static_cast<double>(ranges.peaks.size()) * unit * unit / 12.0;
  return noise;
}

}  // namespace

FixedTables FixedTablesMemory::make(const KeyCodebook::Impl& codebook) {
  const KeyShape& shape = codebook.shape;
  const int half = shape.head_dim / 2;
  std::vector<Ranges> heads;
  for (int head = 0; head < shape.kv_heads; ++head) heads.push_back(ranges_of(codebook, head));

  FixedTables out;
  out.chunks = (half + FixedTables::kPairs - 1) / FixedTables::kPairs;
  out.run = shape.stages;
  const auto quiet = [&](const Ranges& head) { return noise_of(head, units_of(head, out.run)) <= kNoise * head.power; };
  while (out.run > 1 && !std::all_of(heads.begin(), heads.end(), quiet)) {
    // The longest runs of which there is one more.
    const int runs = (shape.stages + out.run - 1) / out.run + 1;
    out.run = std::min(out.run - 1, (shape.stages + runs - 1) / runs);
  }

  const size_t padded = static_cast<size_t>(out.chunks) * FixedTables::kPairs;
  rows_ = make_aligned<int16_t>(static_cast<size_t>(shape.kv_heads) * shape.stages * shape.entries * padded * 2);
  units_ = make_aligned<float>(static_cast<size_t>(shape.kv_heads) * padded);
  int16_t* row = rows_.get();
  for (int head = 0; head < shape.kv_heads; ++head) {
    std::vector<double> units = units_of(heads[head], out.run);
    float* stored = units_.get() + head * padded;
    for (size_t j = 0; j < padded; ++j) {
      stored[j] = j < units.size() ? static_cast<float>(units[j]) : 0.0f;
      // Entries are multiples of what is stored. A unit too small for float32 is worth nothing beside the others.
      if (j < units.size()) units[j] = stored[j];
    }
    for (int chunk = 0; chunk < out.chunks; ++chunk) {
      for (int s = 0; s < shape.stages; ++s) {
        for (int e = 0; e < shape.entries; ++e) {
          const float* z = codebook.stage(head, s).vector(e);
          for (int i = 0; i < FixedTables::kPairs; ++i) {
            const int j = chunk * FixedTables::kPairs + i;
            const bool held = j < half && units[j] > 0.0;
            *row++ = static_cast<int16_t>(held ? std::lrint(z[j] / units[j]) : 0);
            *row++ = static_cast<int16_t>(held ? std::lrint(z[half + j] / units[j]) : 0);
          }
        }
      }
    }
  }
  out.rows = rows_.get();
  out.units = units_.get();
  return out;
}

}  // namespace kvasir::commvq
