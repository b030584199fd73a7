// Codebooks and encoders get the verbs of this machine where they are made.
#include "codecs/commvq/key_codebook.h"
#include "codecs/commvq/value_codebook.h"
#include "codecs/commvq/value_encoder.h"
#include "kernels/kernels.h"

namespace kvasir {
namespace {

const CodebookKernels& kernels_here() { return resolve_codebooks(backend_index("auto")); }

}  // namespace

KeyCodebook* KeyCodebook::create(int kv_heads, int head_dim, RopePairs pairs, int stages, int entries,
                                 const float* tables) {
  std::unique_ptr<KeyCodebook> codebook(new KeyCodebook());
  const commvq::KeyShape shape = {kv_heads, head_dim, pairs, stages, entries};
  codebook->impl_ = std::make_shared<Impl>(shape, tables, kernels_here());
  return codebook.release();
}

ValueCodebook* ValueCodebook::create(int width, int codes, const float* table, const float* thresholds) {
  std::unique_ptr<ValueCodebook> codebook(new ValueCodebook());
  codebook->impl_ = std::make_shared<Impl>(width, codes, table, thresholds, kernels_here());
  return codebook.release();
}

ValueEncoder* ValueEncoder::create(int width, int hidden, int codes, const float* scale, const float* norm_weight,
                                   const float* norm_bias, const float* first_weight, const float* first_bias,
                                   const float* second_weight, const float* second_bias) {
  std::unique_ptr<ValueEncoder> encoder(new ValueEncoder());
  const commvq::ValueNetwork given = {hidden,       scale,      norm_weight,   norm_bias,
                                      first_weight, first_bias, second_weight, second_bias};
  encoder->impl_ = std::make_shared<Impl>(width, codes, given, kernels_here());
  return encoder.release();
}

}  // namespace kvasir
