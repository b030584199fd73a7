// CacheConfig: everything that is decided before a cache exists.
//
//   std::unique_ptr<CacheConfig> config(CacheConfig::create(32));     // 32 layers
//   config->set_heads(kAllLayers, 32, 8, 128);                        // query heads, kv heads, head dim
//   config->set_codec(kAllLayers, Side::kKeys, "uniform", 2);
//   config->set_codec(kAllLayers, Side::kValues, "uniform", 2);
//   config->set_budget(int64_t{4} << 30);
//   std::unique_ptr<Cache> cache(Cache::create(*config));
//
// Setters check their own arguments; what depends on several of them (a codec that cannot hold a head dim) is
// checked by Cache::create. A config is a plain value: change it or destroy it after create, caches do not care.
#pragma once

#include <cstdint>
#include <memory>

#include "kvasir/commvq.h"
#include "kvasir/types.h"

namespace kvasir {

class CacheConfig {
 public:
  // 1..4096 layers. Defaults: no heads (set_heads is required), codec "f16", no sinks, window 0, no budget.
  static CacheConfig* create(int layers);
  static void destroy(CacheConfig* config);
  ~CacheConfig();
  CacheConfig(const CacheConfig&) = delete;
  CacheConfig& operator=(const CacheConfig&) = delete;

  // Geometry -------------------------------------------------------------------------------------------------
  // Query heads must be a multiple of kv heads; the head dim a multiple of 16 in 32..256.
  void set_heads(int layer, int query_heads, int kv_heads, int head_dim);
  // In place of set_heads, for layers whose keys and values share a row, as in multi-head latent attention: one kv head
  // with keys of `row_dim` channels, a multiple of 64 in 64..576, of which the first `value_dim`, a multiple of 16, are
  // the values. Rows are stored once, by the codec of keys; that of values is not looked at. Queries have row_dim
  // channels and outputs value_dim. Appends take rows as keys, and null for values. For codecs whose pages decode by
  // themselves (f16, uniform, progressive), without key scaling and after RoPE. Attention decodes rows first, whatever
  // the backend: statistics count all of it as fallback.
  void set_latent(int layer, int query_heads, int row_dim, int value_dim);
  // The layer attends to the keys and values of layer `source`, which has its own, and appends to it are refused. Of
  // what is set for the layer, the sliding window (no longer than that of the source), scale, cap and sink logits are
  // its own; the rest is as in the source, and heads, if they are set, must be. The layer itself: it has its own again.
  void set_source(int layer, int source);
  // The layer sees only the newest `tokens` tokens, the query's own included. 0: all of them.
  void set_sliding_window(int layer, int64_t tokens);
  // Scores are multiplied by this before the softmax. Default 1/sqrt(channels of a query).
  void set_softmax_scale(int layer, float scale);
  // Scaled scores become cap * tanh(score / cap) before the softmax. 0: they stay as they are.
  void set_soft_cap(int layer, float cap);
  // A learned logit for each query head, which takes part in the softmax's denominator and has no value. A count of 0
  // removes them.
  void set_sink_logits(int layer, const float* logits, int count);

  // Compression ----------------------------------------------------------------------------------------------
  // A codec of the registry (codec.h) and one of its bit widths.
  void set_codec(int layer, Side side, const char* codec, int bits);
  // A codec option by name, e.g. "group" or "axis"; codec.h lists them. Resets by set_codec.
  void set_option(int layer, Side side, const char* name, double value);
  // Newest tokens that stay in 16 bits at least; 0 keeps 0..127 of them. 0..65536.
  void set_window(int tokens);
  // First tokens of a sequence, kept in 16 bits for ever. 0..4096.
  void set_sinks(int tokens);

  // Keys are stored divided by these factors, and queries multiplied by them: [kv_heads][head_dim], positive, one value
  // for both channels of a RoPE pair (calibrate.h finds them). `read` gives keys as they were appended. A count of 0
  // removes them.
  void set_key_scaling(int layer, const float* factors, int64_t count);

  // Keys are appended before RoPE, and attention applies it: pair j of a key at position p turns by p * frequencies[j]
  // radians and is multiplied by `magnitude` (1, or YaRN's). Queries come after RoPE, as ever. For the codecs "commvq"
  // and "f16". Positions count tokens from 0, unless Cache::shift moves them. A count of 0 ends it.
  void set_rope(int layer, RopePairs pairs, const double* frequencies, int count, double magnitude);
  // For the codec "commvq". The objects may be destroyed afterwards. refinements: see KeyCodebook::encode. encoder:
  // null for bits by the codebook itself; flips: how many of its bits a token may change.
  void set_key_codebook(int layer, const KeyCodebook& codebook, int refinements);
  void set_value_codebook(int layer, const ValueCodebook& codebook);
  void set_value_codebook(int layer, const ValueCodebook& codebook, const ValueEncoder& encoder, int flips);

  // For the codec "spectral": the vectors that rows of a side are stored as sums of, [kv_heads][head_dim][head_dim],
  // one after the other, rounded to float16. Keys come after RoPE. Without it rows are stored as they are. A count of 0
  // removes it. Throws kInvalidArgument where vectors of a head do not span the space.
  void set_basis(int layer, Side side, const float* vectors, int64_t count);

  // Memory ---------------------------------------------------------------------------------------------------
  // Hard limits in bytes over everything that a sequence owns: codes, scales, windows, sinks. 0: no limit.
  void set_budget(int64_t bytes);
  void set_layer_budget(int layer, int64_t bytes);
  void set_shrink_policy(ShrinkPolicy policy);

  // Saving ---------------------------------------------------------------------------------------------------
  // The fingerprint of the model whose keys and values these are, 1..64 bytes: sequences are restored (saving.h) only
  // where it is the same. A count of 0: unknown, which is a fingerprint like any other.
  void set_model(const uint8_t* fingerprint, int count);

  // Execution ------------------------------------------------------------------------------------------------
  // "auto", or a backend of backend.h by name. Create fails where the machine does not have it.
  void set_backend(const char* name);
  void set_precision(Precision precision);
  // CPU work of this cache: 0, the default, for the library's pool (backend.h: set_threads), which all such caches
  // share; or 1..1024 threads that are its own, the caller's included. Calls from many threads share its other threads,
  // so with 1 each runs on its caller's thread alone. Results do not depend on it, to the bit. Create throws
  // kUnavailable where the system refuses a thread.
  void set_threads(int threads);

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  explicit CacheConfig(int layers);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
