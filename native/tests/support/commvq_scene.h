// Data and measures that the tests of CommVQ share.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "kvasir/commvq.h"
#include "kvasir/commvq_training.h"
#include "reference/calibrate.h"
#include "support/data.h"

namespace support {

template <class T>
struct Destroy {
  void operator()(T* object) const { T::destroy(object); }
};
template <class T>
using Owned = std::unique_ptr<T, Destroy<T>>;

// What keys and values of real models are like where it matters: a mean far from 0, most of the variance in few
// directions that heads share, some noise everywhere, tokens of different norms. [tokens][width], float16 values.
inline std::vector<float> correlated_rows(uint64_t seed, uint64_t draw, int tokens, int width, int rank = 12) {
  Random shape(seed);
  std::vector<double> mean(width), basis(static_cast<size_t>(rank) * width);
  for (double& x : mean) x = 0.7 * shape.normal();
  for (int r = 0; r < rank; ++r) {
    for (int c = 0; c < width; ++c) basis[static_cast<size_t>(r) * width + c] = shape.normal() * std::exp(-0.25 * r);
  }
  Random random(draw ^ 0x5eed5eed5eedULL);
  std::vector<float> rows(static_cast<size_t>(tokens) * width);
  for (int t = 0; t < tokens; ++t) {
    const double norm = std::exp2(random.uniform());
    std::vector<double> row = mean;
    for (int r = 0; r < rank; ++r) {
      const double factor = random.normal();
      for (int c = 0; c < width; ++c) row[c] += factor * basis[static_cast<size_t>(r) * width + c];
    }
    for (int c = 0; c < width; ++c) {
      rows[static_cast<size_t>(t) * width + c] = round_to_half(norm * (row[c] + 0.15 * random.normal()));
    }
  }
  return rows;
}

inline double mean_squared_error(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = a.size() == b.size() ? 0.0 : 1e300;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) sum += (1.0 * a[i] - b[i]) * (1.0 * a[i] - b[i]);
  return sum / static_cast<double>(a.size());
}

// Mean squared error of rows stored by the codec "uniform": per channel over 128 tokens, or per token over 128 channels
// of a head.
inline double uniform_error(const std::vector<float>& rows, int width, int head_dim, bool by_channel, int bits) {
  const int tokens = static_cast<int>(rows.size()) / width;
  const int group = by_channel ? 128 : std::min(128, head_dim);
  double sum = 0.0;
  const int outer = by_channel ? width : tokens, along = by_channel ? tokens : width;
  for (int o = 0; o < outer; ++o) {
    for (int first = 0; first < along; first += group) {
      std::vector<float> elements;
      for (int i = first; i < std::min(along, first + group); ++i) {
        elements.push_back(rows[by_channel ? static_cast<size_t>(i) * width + o : static_cast<size_t>(o) * width + i]);
      }
      const reference::StoredGroup stored(elements, bits);
      for (size_t i = 0; i < elements.size(); ++i) {
        sum += (stored.values[i] - elements[i]) * (stored.values[i] - elements[i]);
      }
    }
  }
  return sum / static_cast<double>(rows.size());
}

struct KeyTraining {
  int kv_heads, head_dim, stages, entries;
  kvasir::RopePairs pairs = kvasir::RopePairs::kHalves;
  int64_t seed = 1;
  int steps = 30;

  Owned<kvasir::KeyTrainer> trainer(const std::vector<float>& rows) const {
    Owned<kvasir::KeyTrainer> result(kvasir::KeyTrainer::create(kv_heads, head_dim, pairs, stages, entries, seed));
    result->set_steps(steps);
    result->add(rows.data(), static_cast<int64_t>(rows.size()) / (kv_heads * head_dim));
    return result;
  }
  std::vector<float> tables(const kvasir::KeyTrainer& trainer) const {
    std::vector<float> result(static_cast<size_t>(kv_heads) * stages * entries * head_dim);
    trainer.read_tables(result.data());
    return result;
  }
  std::vector<float> train(const std::vector<float>& rows) const {
    const auto trained = trainer(rows);
    while (trained->step()) {
    }
    return tables(*trained);
  }
  Owned<kvasir::KeyCodebook> codebook(const std::vector<float>& tables) const {
    return Owned<kvasir::KeyCodebook>(
        kvasir::KeyCodebook::create(kv_heads, head_dim, pairs, stages, entries, tables.data()));
  }
};

struct EncodedKeys {
  std::vector<uint8_t> codes;
  std::vector<uint16_t> norms;

  EncodedKeys(const kvasir::KeyCodebook& codebook, const std::vector<float>& rows, int refinements = 0)
      : norms(rows.size() / (codebook.kv_heads() * codebook.head_dim())) {
    codes.assign(static_cast<size_t>(codebook.code_bytes(static_cast<int64_t>(norms.size()))), 0xAA);
    codebook.encode(rows.data(), static_cast<int64_t>(norms.size()), refinements, codes.data(), norms.data());
  }
  std::vector<float> decode(const kvasir::KeyCodebook& codebook) const {
    std::vector<float> rows(norms.size() * codebook.kv_heads() * codebook.head_dim());
    codebook.decode(codes.data(), norms.data(), static_cast<int64_t>(norms.size()), rows.data());
    return rows;
  }
};

struct ValueFit {
  int width, codes;
  int steps = 30;
  std::vector<float> table{}, thresholds{};
  double error = 0.0;

  void run(const std::vector<float>& rows) {
    const Owned<kvasir::ValueFitter> fitter(kvasir::ValueFitter::create(width, codes));
    fitter->set_steps(steps);
    fitter->add(rows.data(), static_cast<int64_t>(rows.size()) / width);
    while (fitter->step()) {
    }
    table.resize(static_cast<size_t>(codes) * width);
    thresholds.resize(static_cast<size_t>(codes));
    fitter->read_table(table.data());
    fitter->read_thresholds(thresholds.data());
    error = fitter->error();
  }
  Owned<kvasir::ValueCodebook> codebook() const {
    return Owned<kvasir::ValueCodebook>(
        kvasir::ValueCodebook::create(width, codes, table.data(), thresholds.empty() ? nullptr : thresholds.data()));
  }
};

struct EncodedValues {
  std::vector<uint8_t> bits;
  std::vector<uint16_t> gains;

  EncodedValues(const kvasir::ValueCodebook& codebook, const std::vector<float>& rows)
      : gains(rows.size() / codebook.width()) {
    bits.assign(static_cast<size_t>(codebook.bit_bytes(static_cast<int64_t>(gains.size()))), 0xAA);
    codebook.encode(rows.data(), static_cast<int64_t>(gains.size()), bits.data(), gains.data());
  }
  std::vector<float> decode(const kvasir::ValueCodebook& codebook) const {
    std::vector<float> rows(gains.size() * codebook.width());
    codebook.decode(bits.data(), gains.data(), static_cast<int64_t>(gains.size()), rows.data());
    return rows;
  }
};

}  // namespace support
