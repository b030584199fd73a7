#include "cache/config.h"

#include <cmath>

#include "base/checks.h"
#include "base/sha256.h"
#include "codecs/basis.h"

namespace kvasir {
namespace {

constexpr int kMaxLayers = 4096;
constexpr int kMaxHeads = 4096;
constexpr int kMaxWindow = 65536;
constexpr int kMaxSinks = 4096;
constexpr int kMaxThreads = 1024;

void check_range(const char* what, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    refuse(std::string(what) + " must be " + std::to_string(low) + ".." + std::to_string(high) + ", not " +
           std::to_string(value));
  }
}

const char* check_text(const char* what, const char* text) {
  if (!text) refuse(std::string(what) + " is null");
  return text;
}

int side_index(Side side) {
  const int index = static_cast<int>(side);
  check_range("side", index, 0, 1);
  return index;
}

// Applies `change` to one layer or to all.
template <class Change>
void for_layers(std::vector<LayerConfig>& layers, int layer, Change change) {
  if (layer == kAllLayers) {
    for (LayerConfig& each : layers) change(each);
    return;
  }
  check_range("layer", layer, 0, static_cast<int64_t>(layers.size()) - 1);
  change(layers[layer]);
}

}  // namespace

CacheConfig* CacheConfig::create(int layers) {
  check_range("layers", layers, 1, kMaxLayers);
  return new CacheConfig(layers);
}

void CacheConfig::destroy(CacheConfig* config) { delete config; }

CacheConfig::CacheConfig(int layers) : impl_(new Impl) { impl_->layers.resize(layers); }
CacheConfig::~CacheConfig() = default;

void CacheConfig::set_heads(int layer, int query_heads, int kv_heads, int head_dim) {
  check_range("query heads", query_heads, 1, kMaxHeads);
  check_range("kv heads", kv_heads, 1, query_heads);
  if (query_heads % kv_heads != 0) {
    refuse("query heads (" + std::to_string(query_heads) + ") must be a multiple of kv heads (" +
           std::to_string(kv_heads) + ")");
  }
  check_range("head dim", head_dim, 32, kMaxHeadDim);
  if (head_dim % 16 != 0) refuse("head dim must be a multiple of 16, not " + std::to_string(head_dim));
  for_layers(impl_->layers, layer, [&](LayerConfig& each) {
    each.query_heads = query_heads;
    each.kv_heads = kv_heads;
    each.head_dim = head_dim;
    each.row_dim = each.value_dim = 0;
  });
}

void CacheConfig::set_latent(int layer, int query_heads, int row_dim, int value_dim) {
  check_range("query heads", query_heads, 1, kMaxHeads);
  check_range("row dim", row_dim, 64, kMaxRowDim);
  if (row_dim % 64 != 0) refuse("row dim must be a multiple of 64, not " + std::to_string(row_dim));
  check_range("value dim", value_dim, 16, row_dim);
  if (value_dim % 16 != 0) refuse("value dim must be a multiple of 16, not " + std::to_string(value_dim));
  // Half of the row stands where other layers have keys, in as few slices as there can be, and half where they have
  // values.
  int slice = 128;
  while (row_dim / 2 % slice != 0) slice -= 16;
  for_layers(impl_->layers, layer, [&](LayerConfig& each) {
    each.query_heads = query_heads;
    each.kv_heads = row_dim / 2 / slice;
    each.head_dim = slice;
    each.row_dim = row_dim;
    each.value_dim = value_dim;
  });
}

void CacheConfig::set_source(int layer, int source) {
  const int64_t last = static_cast<int64_t>(impl_->layers.size()) - 1;
  check_range("layer", layer, 0, last);
  check_range("source", source, 0, last);
  impl_->layers[layer].source = source == layer ? -1 : source;
}

void CacheConfig::set_sliding_window(int layer, int64_t tokens) {
  check_range("sliding window", tokens, 0, INT64_MAX / 2);
  for_layers(impl_->layers, layer, [&](LayerConfig& each) { each.sliding_window = tokens; });
}

void CacheConfig::set_softmax_scale(int layer, float scale) {
  if (!std::isfinite(scale) || scale <= 0.0f) refuse("softmax scale must be positive, not " + float_text(scale));
  for_layers(impl_->layers, layer, [&](LayerConfig& each) { each.softmax_scale = scale; });
}

void CacheConfig::set_soft_cap(int layer, float cap) {
  if (!std::isfinite(cap) || cap < 0.0f) refuse("soft cap must be 0 or positive, not " + float_text(cap));
  for_layers(impl_->layers, layer, [&](LayerConfig& each) { each.soft_cap = cap; });
}

void CacheConfig::set_sink_logits(int layer, const float* logits, int count) {
  check_range("sink logits", count, 0, kMaxHeads);
  if (count > 0 && !logits) refuse("sink logits are null");
  for (int i = 0; i < count; ++i) {
    if (!std::isfinite(logits[i])) refuse("sink logit " + std::to_string(i) + " is " + float_text(logits[i]));
  }
  for_layers(impl_->layers, layer, [&](LayerConfig& each) { each.sink_logits.assign(logits, logits + count); });
}

void CacheConfig::set_codec(int layer, Side side, const char* codec, int bits) {
  const int index = side_index(side);
  const std::string name = codec_at(codec_index(check_text("codec", codec))).name;
  for_layers(impl_->layers, layer, [&](LayerConfig& each) { each.sides[index] = {name, bits, {}}; });
}

void CacheConfig::set_option(int layer, Side side, const char* name, double value) {
  const int index = side_index(side);
  check_text("option", name);
  if (!std::isfinite(value)) refuse("option " + std::string(name) + " must be a finite number");
  for_layers(impl_->layers, layer, [&](LayerConfig& each) { each.sides[index].options[name] = value; });
}

void CacheConfig::set_model(const uint8_t* fingerprint, int count) {
  check_range("bytes of a model's fingerprint", count, 0, 64);
  if (count > 0 && !fingerprint) refuse("the model's fingerprint is null");
  impl_->model = hex(fingerprint, static_cast<size_t>(count));
}

void CacheConfig::set_window(int tokens) {
  check_range("window", tokens, 0, kMaxWindow);
  impl_->window = tokens;
}

void CacheConfig::set_sinks(int tokens) {
  check_range("sinks", tokens, 0, kMaxSinks);
  impl_->sinks = tokens;
}

void CacheConfig::set_key_scaling(int layer, const float* factors, int64_t count) {
  check_range("factors", count, 0, int64_t{kMaxHeads} * kMaxHeadDim);
  if (count > 0 && !factors) refuse("factors are null");
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(factors[i]) || factors[i] <= 0.0f) {
      refuse("factor " + std::to_string(i) + " of key scaling must be positive, not " + float_text(factors[i]));
    }
  }
  for_layers(impl_->layers, layer, [&](LayerConfig& each) { each.key_scaling.assign(factors, factors + count); });
}

void CacheConfig::set_rope(int layer, RopePairs pairs, const double* frequencies, int count, double magnitude) {
  check_range("pairs", static_cast<int>(pairs), 0, 1);
  check_range("frequencies", count, 0, kMaxHeadDim / 2);
  if (count > 0 && !frequencies) refuse("frequencies are null");
  for (int j = 0; j < count; ++j) {
    if (!std::isfinite(frequencies[j])) refuse("frequency " + std::to_string(j) + " is not finite");
  }
  if (!std::isfinite(magnitude) || magnitude <= 0.0) {
    refuse("the magnitude of RoPE must be positive, not " + float_text(magnitude));
  }
  for_layers(impl_->layers, layer, [&](LayerConfig& each) {
    each.rope_pairs = pairs;
    each.rope.assign(frequencies, frequencies + count);
    each.rope_magnitude = magnitude;
  });
}

void CacheConfig::set_key_codebook(int layer, const KeyCodebook& codebook, int refinements) {
  check_range("refinements", refinements, 0, 100);
  const std::shared_ptr<const KeyCodebook> shared(codebook.share());
  for_layers(impl_->layers, layer, [&](LayerConfig& each) {
    each.codebooks.keys = shared;
    each.codebooks.refinements = refinements;
  });
}

void CacheConfig::set_value_codebook(int layer, const ValueCodebook& codebook) {
  const std::shared_ptr<const ValueCodebook> shared(codebook.share());
  for_layers(impl_->layers, layer, [&](LayerConfig& each) {
    each.codebooks.values = shared;
    each.codebooks.encoder = nullptr;
  });
}

void CacheConfig::set_value_codebook(int layer, const ValueCodebook& codebook, const ValueEncoder& encoder, int flips) {
  check_range("flips", flips, 0, INT32_MAX);
  set_value_codebook(layer, codebook);
  const std::shared_ptr<const ValueEncoder> shared(encoder.share());
  for_layers(impl_->layers, layer, [&](LayerConfig& each) {
    each.codebooks.encoder = shared;
    each.codebooks.flips = flips;
  });
}

void CacheConfig::set_basis(int layer, Side side, const float* vectors, int64_t count) {
  check_range("side", static_cast<int>(side), 0, 1);
  check_range("elements", count, 0, int64_t{kMaxHeads} * kMaxHeadDim * kMaxHeadDim);
  if (count > 0 && !vectors) refuse("vectors are null");
  std::shared_ptr<const Basis> basis;
  for_layers(impl_->layers, layer, [&](LayerConfig& each) {
    const int64_t wanted = int64_t{each.kv_heads} * each.head_dim * each.head_dim;
    if (count > 0 && wanted == 0) refuse("a basis is for heads: call set_heads first");
    if (count > 0 && count != wanted) {
      refuse("a basis of " + std::to_string(each.kv_heads) + " kv heads of " + std::to_string(each.head_dim) +
             " channels has " + std::to_string(wanted) + " elements, not " + std::to_string(count));
    }
    // Layers that are alike share one.
    const bool same = basis && basis->kv_heads() == each.kv_heads && basis->head_dim() == each.head_dim;
    if (count > 0 && !same) basis = Basis::make(vectors, each.kv_heads, each.head_dim);
    each.codebooks.bases[static_cast<int>(side)] = basis;
  });
}

void CacheConfig::set_budget(int64_t bytes) {
  check_range("budget", bytes, 0, INT64_MAX);
  impl_->budget = bytes;
}

void CacheConfig::set_layer_budget(int layer, int64_t bytes) {
  check_range("layer budget", bytes, 0, INT64_MAX);
  for_layers(impl_->layers, layer, [&](LayerConfig& each) { each.budget = bytes; });
}

void CacheConfig::set_shrink_policy(ShrinkPolicy policy) {
  check_range("shrink policy", static_cast<int>(policy), 0, 1);
  impl_->shrink_policy = policy;
}

void CacheConfig::set_backend(const char* name) { impl_->backend = check_text("backend", name); }

void CacheConfig::set_precision(Precision precision) {
  check_range("precision", static_cast<int>(precision), 0, 1);
  impl_->precision = precision;
}

void CacheConfig::set_threads(int threads) {
  check_range("threads", threads, 0, kMaxThreads);
  impl_->threads = threads;
}

}  // namespace kvasir
