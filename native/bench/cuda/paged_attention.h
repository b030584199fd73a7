// What benchmarks of attention over whole pages have in common: sequences in sets, and a check of their outputs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "device_memory.h"
#include "kernels/cuda/attend/types.h"

namespace bench {

// `sets` times `count` sequences of `pages` pages each, which follow each other in `data`. One array a set.
inline std::vector<const kvasir::cuda::DeviceSequence*> sequence_sets(DeviceMemory& memory, const uint8_t* data,
                                                                      size_t page_bytes, int sets, int count,
                                                                      int pages) {
  std::vector<const kvasir::cuda::DeviceSequence*> made;
  for (int set = 0; set < sets; ++set) {
    std::vector<kvasir::cuda::DeviceSequence> sequences;
    for (int s = 0; s < count; ++s) {
      std::vector<uint64_t> table;
      for (int p = 0; p < pages; ++p, data += page_bytes) table.push_back(reinterpret_cast<uint64_t>(data));
      kvasir::cuda::DeviceSequence sequence = {};
      sequence.pages = memory.copy(table);
      sequence.page_count = pages;
      sequences.push_back(sequence);
    }
    made.push_back(memory.copy(sequences));
  }
  return made;
}

// How far an output is off, relative to its power. key(t), value(t): rows of `dim` numbers.
template <class Key, class Value>
double output_error(const float* query, const float* output, int dim, int64_t tokens, const Key& key,
                    const Value& value) {
  std::vector<double> weights;
  for (int64_t t = 0; t < tokens; ++t) {
    double score = 0.0;
    for (int c = 0; c < dim; ++c) score += static_cast<double>(query[c]) * key(t)[c];
    weights.push_back(score / std::sqrt(static_cast<double>(dim)));
  }
  const double highest = *std::max_element(weights.begin(), weights.end());
  double sum = 0.0, wrong = 0.0, power = 0.0;
  for (double& weight : weights) sum += weight = std::exp(weight - highest);
  for (int c = 0; c < dim; ++c) {
    double right = 0.0;
    for (int64_t t = 0; t < tokens; ++t) right += weights[t] / sum * value(t)[c];
    wrong += (output[c] - right) * (output[c] - right);
    power += right * right;
  }
  return wrong / power;
}

}  // namespace bench
