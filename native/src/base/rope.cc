#include "base/rope.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/checked.h"
#include "base/checks.h"
#include "kvasir/rope.h"

namespace kvasir {
namespace {

constexpr int kMaxHalf = 128;
constexpr double kTau = 6.283185307179586476925;

void require_frequencies(const double* frequencies, int head_dim) {
  require_head_dim(head_dim);
  require_pointer("frequencies", frequencies);
  for (int j = 0; j < head_dim / 2; ++j) {
    if (!std::isfinite(frequencies[j])) refuse("frequency " + std::to_string(j) + " is not finite");
  }
}

// NaN and infinity are refused too.
void require_more(const char* name, double value, double least, bool may_equal) {
  if (!std::isfinite(value) || !(may_equal ? value >= least : value > least)) {
    refuse(std::string("RoPE ") + name + " is " + float_text(value));
  }
}

}  // namespace

void require_rope_pairs(RopePairs pairs) {
  if (pairs != RopePairs::kHalves && pairs != RopePairs::kNeighbours) {
    refuse("RopePairs " + std::to_string(static_cast<int>(pairs)) + " is none");
  }
}

void rope_frequencies(double base, int head_dim, double* frequencies) {
  require_head_dim(head_dim);
  require_pointer("frequencies", frequencies);
  require_more("base", base, 1.0, false);
  for (int j = 0; j < head_dim / 2; ++j) frequencies[j] = std::pow(base, -2.0 * j / head_dim);
}

void scale_rope_linear(double factor, int head_dim, double* frequencies) {
  require_frequencies(frequencies, head_dim);
  require_more("factor", factor, 1.0, true);
  for (int j = 0; j < head_dim / 2; ++j) frequencies[j] /= factor;
}

void scale_rope_llama3(double factor, double low_factor, double high_factor, double original_context, int head_dim,
                       double* frequencies) {
  require_frequencies(frequencies, head_dim);
  require_more("factor", factor, 1.0, true);
  require_more("low_factor", low_factor, 0.0, false);
  require_more("high_factor", high_factor, low_factor, false);
  require_more("original_context", original_context, 0.0, false);
  for (int j = 0; j < head_dim / 2; ++j) {
    // Turns within the original context: at most low_factor is a long wave, at least high_factor a short one.
    const double turns = original_context * frequencies[j] / kTau;
    const double kept = std::min(std::max((turns - low_factor) / (high_factor - low_factor), 0.0), 1.0);
    frequencies[j] *= kept + (1.0 - kept) / factor;
  }
}

double scale_rope_yarn(double base, double factor, double beta_fast, double beta_slow, double original_context,
                       int head_dim, double* frequencies) {
  require_frequencies(frequencies, head_dim);
  require_more("base", base, 1.0, false);
  require_more("factor", factor, 1.0, true);
  require_more("beta_slow", beta_slow, 0.0, false);
  require_more("beta_fast", beta_fast, beta_slow, true);
  require_more("original_context", original_context, 0.0, false);
  // The number of the pair, as a fraction, that turns `turns` times in the original context.
  const auto pair_of = [&](double turns) {
    return head_dim * std::log(original_context / (turns * kTau)) / (2.0 * std::log(base));
  };
  const double first = std::max(std::floor(pair_of(beta_fast)), 0.0);
  double last = std::max(std::min(std::ceil(pair_of(beta_slow)), head_dim - 1.0), first);
  if (first == last) last += 0.001;  // a step instead of a ramp without length
  for (int j = 0; j < head_dim / 2; ++j) {
    const double stretched = std::min(std::max((j - first) / (last - first), 0.0), 1.0);
    frequencies[j] *= (1.0 - stretched) + stretched / factor;
  }
  return 0.1 * std::log(factor) + 1.0;
}

void rotate(float* rows, int64_t tokens, int heads, int head_dim, const double* frequencies, RopePairs pairs,
            int64_t first, double scale) {
  if (rows == nullptr) refuse("rows is null");
  if (tokens < 1) refuse("tokens is " + std::to_string(tokens) + ", not 1 or more");
  if (heads < 1) refuse("heads is " + std::to_string(heads) + ", not 1 or more");
  require_frequencies(frequencies, head_dim);
  checked_multiply(checked_multiply(tokens, heads, "rows"), head_dim * int64_t{8}, "rows");
  require_rope_pairs(pairs);
  if (!std::isfinite(scale)) refuse("scale is " + float_text(scale));
  checked_add(first, tokens, "positions");
  const int half = head_dim / 2;
  for (int64_t t = 0; t < tokens; ++t) {
    double cosine[kMaxHalf], sine[kMaxHalf];
    for (int j = 0; j < half; ++j) {
      const double angle = scale * static_cast<double>(first + t) * frequencies[j];
      cosine[j] = std::cos(angle);
      sine[j] = std::sin(angle);
    }
    for (int h = 0; h < heads; ++h) {
      float* row = rows + (static_cast<size_t>(t) * heads + h) * head_dim;
      for (int j = 0; j < half; ++j) {
        const RopePair pair(pairs, j, head_dim);
        const double a = row[pair.a], b = row[pair.b];
        row[pair.a] = static_cast<float>(a * cosine[j] - b * sine[j]);
        row[pair.b] = static_cast<float>(a * sine[j] + b * cosine[j]);
      }
    }
  }
}

void to_planar(RopePairs pairs, int head_dim, const float* row, float* planar) {
  for (int j = 0; j < head_dim / 2; ++j) {
    const RopePair pair(pairs, j, head_dim);
    planar[j] = row[pair.a];
    planar[head_dim / 2 + j] = row[pair.b];
  }
}

void from_planar(RopePairs pairs, int head_dim, const float* planar, float* row) {
  for (int j = 0; j < head_dim / 2; ++j) {
    const RopePair pair(pairs, j, head_dim);
    row[pair.a] = planar[j];
    row[pair.b] = planar[head_dim / 2 + j];
  }
}

Turns::Turns(const double* frequencies, int head_dim, double magnitude) : half_(head_dim / 2), magnitude_(magnitude) {
  require_frequencies(frequencies, head_dim);
  require_more("magnitude", magnitude, 0.0, false);
  frequencies_ = make_aligned<double>(half_);
  std::copy(frequencies, frequencies + half_, frequencies_.get());
  table_ = make_aligned<float>(static_cast<size_t>(kTurnTokens) * 2 * half_);
  for (int t = 0; t < kTurnTokens; ++t) {
    float* row = table_.get() + static_cast<size_t>(t) * 2 * half_;
    at(t, row, row + half_);
  }
}

void Turns::at(int64_t position, float* cosine, float* sine) const {
  for (int j = 0; j < half_; ++j) {
    const double angle = static_cast<double>(position) * frequencies_[j];
    cosine[j] = static_cast<float>(magnitude_ * std::cos(angle));
    sine[j] = static_cast<float>(magnitude_ * std::sin(angle));
  }
}

}  // namespace kvasir
