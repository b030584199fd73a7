#include "codecs/commvq/page_models.h"

#include <limits>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/checks.h"
#include "base/half.h"
#include "base/sha256.h"
#include "codecs/commvq/fixed_tables.h"
#include "codecs/commvq/key_codebook.h"
#include "codecs/commvq/value_codebook.h"
#include "codecs/commvq/value_encoder.h"

namespace kvasir::commvq {
namespace {

void give(const Digest& digest, uint8_t (&out)[32]) { std::copy(digest.begin(), digest.end(), out); }

class KeyPages : public KeyModel {
 public:
  KeyPages(const KeyCodebook& codebook, int times) : codebook_(codebook.share()) {
    const KeyShape& shape = codebook_->impl().shape;
    page = shape.page();
    head_dim = shape.head_dim;
    entries = shape.entries;
    pairs = shape.pairs;
    refinements = times;
    const size_t chunks = static_cast<size_t>(shape.kv_heads) * (head_dim / kChunk) * shape.stages;
    memory_ = make_aligned<uint16_t>(chunks * entries * kChunk);
    tables = memory_.get();
    uint16_t* out = memory_.get();
    for (int head = 0; head < shape.kv_heads; ++head) {
      for (int chunk = 0; chunk < head_dim / kChunk; ++chunk) {
        for (int s = 0; s < shape.stages; ++s) {
          const Stage& stage = codebook_->impl().stage(head, s);
          for (int e = 0; e < entries; ++e) {
            const float* z = stage.vector(e) + chunk * kChunk;
            for (int c = 0; c < kChunk; ++c) *out++ = float_to_half(z[c]);
          }
        }
      }
    }
    fixed = fixed_.make(codebook_->impl());
  }

  void encode(const float* rows, uint8_t* out) const override {
    const KeyShape& shape = codebook_->impl().shape;
    const size_t width = shape.width();
    auto* norms = reinterpret_cast<uint16_t*>(out);
    float divisors[kPageTokens];
    for (int t = 0; t < kPageTokens; ++t) norms[t] = token_norm(rows + t * width, width, &divisors[t]);
    for (int head = 0; head < shape.kv_heads; ++head) {
      codebook_->impl().encode_head(head, rows, divisors, kPageTokens, refinements, out + page.head_offset(head));
    }
    const size_t end = page.head_offset(page.kv_heads);
    std::fill(out + end, out + page.bytes(), uint8_t{0});
  }

  void decode(const uint8_t* in, float* rows) const override {
    const auto* norms = reinterpret_cast<const uint16_t*>(in);
    for (int head = 0; head < page.kv_heads; ++head) {
      codebook_->impl().decode_head(head, in + page.head_offset(head), norms, kPageTokens, rows);
    }
  }

  Codebook codebook() const override {
    const KeyShape& shape = codebook_->impl().shape;
    return {&codebook_->impl(),
            static_cast<int64_t>(shape.kv_heads * shape.stages * shape.table_floats() * sizeof(uint16_t))};
  }

  void content(uint8_t (&digest)[32]) const override {
    const KeyShape& shape = codebook_->impl().shape;
    Sha256 sum;
    for (const int number :
         {shape.kv_heads, shape.head_dim, static_cast<int>(shape.pairs), shape.stages, entries, refinements}) {
      sum.add_number(number);
    }
    const size_t halves = static_cast<size_t>(shape.kv_heads) * head_dim * shape.stages * entries;
    give(sum.add(tables, halves * sizeof(uint16_t)).finish(), digest);
  }

 private:
  const std::unique_ptr<const KeyCodebook> codebook_;
  AlignedArray<uint16_t> memory_;
  FixedTablesMemory fixed_;
};

class ValuePages : public ValueModel {
 public:
  ValuePages(const ValueCodebook& codebook, const ValueEncoder* encoder, int most_flips, int heads, int dim)
      : codebook_(codebook.share()), encoder_(encoder ? encoder->share() : nullptr) {
    page = {codebook.codes()};
    kv_heads = heads;
    head_dim = dim;
    thresholds = codebook_->impl().thresholds.data();
    flips = encoder ? most_flips : std::numeric_limits<int>::max();
    if (encoder) {
      const EncoderWeights& weights = encoder_->impl().weights;
      network = ValueNetwork{weights.hidden,
                             weights.scale.data(),
                             weights.norm_weight.data(),
                             weights.norm_bias.data(),
                             weights.first_weight.data(),
                             weights.first_bias.data(),
                             weights.second_weight.data(),
                             weights.second_bias.data()};
    }
    memory_ = make_aligned<uint16_t>(static_cast<size_t>(heads) * codebook.codes() * dim);
    tables = memory_.get();
    for (int head = 0; head < heads; ++head) {
      for (int n = 0; n < codebook.codes(); ++n) {
        const float* row = codebook_->impl().row(n) + static_cast<size_t>(head) * dim;
        uint16_t* out = memory_.get() + (static_cast<size_t>(head) * codebook.codes() + n) * dim;
        for (int c = 0; c < dim; ++c) out[c] = float_to_half(row[c]);
      }
    }
  }

  void encode(const float* rows, uint8_t* out) const override {
    const ValueCodebook::Impl& impl = codebook_->impl();
    std::vector<uint8_t> bits(kPageTokens * impl.token_bytes());
    auto* gains = reinterpret_cast<uint16_t*>(out);
    if (encoder_) {
      encoder_->encode(rows, kPageTokens, bits.data());
      codebook_->refine(rows, kPageTokens, flips, bits.data(), gains);
    } else {
      codebook_->encode(rows, kPageTokens, bits.data(), gains);
    }
    const CodePlane plane = page.plane();
    uint8_t* codes = out + kScaleBytes;
    std::fill(codes, codes + plane.bytes(), uint8_t{0});
    for (int t = 0; t < kPageTokens; ++t) {
      const uint8_t* row = bits.data() + t * impl.token_bytes();
      for (int n = 0; n < page.codes; ++n) plane.put(codes, t, n, bit_at(row, n));
    }
  }

  void decode(const uint8_t* in, float* rows) const override {
    const ValueCodebook::Impl& impl = codebook_->impl();
    const CodePlane plane = page.plane();
    const auto* gains = reinterpret_cast<const uint16_t*>(in);
    std::vector<uint8_t> bits(impl.token_bytes());
    for (int t = 0; t < kPageTokens; ++t) {
      std::fill(bits.begin(), bits.end(), uint8_t{0});
      for (int n = 0; n < page.codes; ++n) {
        bits[n / 8] = static_cast<uint8_t>(bits[n / 8] | plane.get(in + kScaleBytes, t, n) << (n % 8));
      }
      float* row = rows + static_cast<size_t>(t) * impl.width;
      impl.sum_rows(bits.data(), row);
      for (int c = 0; c < impl.width; ++c) row[c] *= half_to_float(gains[t]);
    }
  }

  Codebook codebook() const override {
    const ValueCodebook::Impl& impl = codebook_->impl();
    return {&impl, static_cast<int64_t>(impl.table.size() * sizeof(uint16_t))};
  }

  void content(uint8_t (&digest)[32]) const override {
    Sha256 sum;
    for (const int number : {kv_heads, head_dim, page.codes, flips}) sum.add_number(number);
    sum.add(tables, static_cast<size_t>(kv_heads) * page.codes * head_dim * sizeof(uint16_t));
    const auto add = [&](const std::vector<float>& floats) { sum.add(floats.data(), floats.size() * sizeof(float)); };
    if (encoder_) {
      const EncoderWeights& weights = encoder_->impl().weights;
      sum.add_number(weights.hidden);
      for (const std::vector<float>* each :
           {&weights.scale, &weights.norm_weight, &weights.norm_bias, &weights.first_weight, &weights.first_bias,
            &weights.second_weight, &weights.second_bias}) {
        add(*each);
      }
    } else {
      add(codebook_->impl().thresholds);
    }
    give(sum.finish(), digest);
  }

 private:
  const std::unique_ptr<const ValueCodebook> codebook_;
  const std::unique_ptr<const ValueEncoder> encoder_;
  AlignedArray<uint16_t> memory_;
};

}  // namespace

std::unique_ptr<KeyModel> make_key_model(const KeyCodebook& codebook, int refinements) {
  return std::make_unique<KeyPages>(codebook, refinements);
}

std::unique_ptr<ValueModel> make_value_model(const ValueCodebook& codebook, const ValueEncoder* encoder, int flips,
                                             int kv_heads, int head_dim) {
  if (codebook.width() != kv_heads * head_dim) {
    refuse("the value codebook is for rows of " + std::to_string(codebook.width()) + ", the layer has " +
           std::to_string(kv_heads) + " kv heads of " + std::to_string(head_dim));
  }
  if (encoder && (encoder->width() != codebook.width() || encoder->codes() != codebook.codes())) {
    refuse("the encoder makes " + std::to_string(encoder->codes()) + " bits of rows of " +
           std::to_string(encoder->width()) + ", the codebook has " + std::to_string(codebook.codes()) +
           " for rows of " + std::to_string(codebook.width()));
  }
  return std::make_unique<ValuePages>(codebook, encoder, flips, kv_heads, head_dim);
}

}  // namespace kvasir::commvq
