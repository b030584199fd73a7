#include "cache/plan.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kvasir/error.h"

namespace kvasir {
namespace {

// The next shape down: of the sides that can still be narrowed, the wider one is, or both where they are alike.
bool narrower_shape(const Codec* const (&codecs)[2], const PageShape& shape, PageShape& next) {
  next = shape;
  bool any = false;
  for (int side = 0; side < 2; ++side) {
    PageFormat format;
    if (shape.width == 0 || shape.formats[side].width() != shape.width || !codecs[side]->narrower) continue;
    if (!codecs[side]->narrower(shape.formats[side], format)) continue;
    next.formats[side] = format;
    any = true;
  }
  return any;
}

int widest_that_shrinks(const Codec* const (&codecs)[2], const PageShape& shape) {
  int width = 0;
  for (int side = 0; side < 2; ++side) {
    PageFormat format;
    if (codecs[side]->narrower && codecs[side]->narrower(shape.formats[side], format)) {
      width = std::max(width, shape.formats[side].width());
    }
  }
  return width;
}

template <class Refuse>
void plan_rope(const LayerConfig& layer, LayerPlan& plan, const Refuse& refuse) {
  const bool trained = plan.codecs[0]->before_rope;
  if (layer.rope.empty()) {
    if (trained) refuse("stores keys before RoPE: call set_rope");
    return;
  }
  if (static_cast<int>(layer.rope.size()) != layer.head_dim / 2) {
    refuse("has " + std::to_string(layer.head_dim / 2) + " RoPE pairs, but " + std::to_string(layer.rope.size()) +
           " frequencies");
  }
  if (!plan.codecs[0]->turns) refuse("stores keys before RoPE, which codec " + layer.sides[0].codec + " cannot turn");
  if (trained && layer.codebooks.keys->pairs() != layer.rope_pairs) refuse("has a key codebook for other RoPE pairs");
  plan.turns = std::make_shared<const PageTurns>(layer.rope.data(), layer.head_dim, layer.rope_magnitude);
  plan.frequencies = layer.rope;
  plan.magnitude = layer.rope_magnitude;
  plan.attention.turns = plan.turns.get();
  plan.attention.pairs = layer.rope_pairs;
}

// What a layer is, where it takes keys and values from another one.
template <class Refuse>
LayerConfig config_of(const CacheConfig::Impl& config, int index, const Refuse& refuse) {
  const LayerConfig& own = config.layers[index];
  if (own.source < 0) return own;
  LayerConfig layer = config.layers[own.source];
  const std::string source = "layer " + std::to_string(own.source);
  if (layer.source >= 0) refuse("takes keys and values from " + source + ", which has none of its own");
  const bool same = own.query_heads == layer.query_heads && own.kv_heads == layer.kv_heads &&
                    own.head_dim == layer.head_dim && own.row_dim == layer.row_dim && own.value_dim == layer.value_dim;
  if (own.query_heads != 0 && !same) refuse("has other heads than " + source + ", whose keys and values it takes");
  if (layer.sliding_window > 0 && (own.sliding_window == 0 || own.sliding_window > layer.sliding_window)) {
    refuse("sees more tokens than " + source + " keeps, whose keys and values it takes");
  }
  layer.source = own.source;
  layer.sliding_window = own.sliding_window;
  layer.softmax_scale = own.softmax_scale;
  layer.soft_cap = own.soft_cap;
  layer.sink_logits = own.sink_logits;
  return layer;
}

// How a side of a layer whose keys and values share a row is stored: as keys are, also where a codec treats sides in
// two ways unless it is told which.
SideConfig shared_side(const LayerConfig& layer, Side side, const PageFormat& keys) {
  SideConfig shared = layer.sides[0];
  const CodecOption* option = codec_at(codec_index(shared.codec)).options;
  while (option->name && std::string(option->name) != "axis") ++option;
  if (side == Side::kValues && option->name) shared.options.emplace("axis", static_cast<double>(keys.axis));
  return shared;
}

LayerPlan plan_layer(const CacheConfig::Impl& config, int index, int backend) {
  const auto refuse = [&](const std::string& text) {
    throw Error(ErrorCode::kInvalidArgument, "layer " + std::to_string(index) + " " + text);
  };
  const LayerConfig layer = config_of(config, index, refuse);
  if (layer.query_heads == 0) refuse("has no heads: call set_heads");
  LayerPlan plan = {};
  plan.index = index;
  plan.source = layer.source >= 0 ? layer.source : index;
  plan.sinks = config.sinks;
  plan.window = config.window;
  AttentionLayer& attention = plan.attention;
  attention.query_heads = layer.query_heads;
  attention.kv_heads = layer.kv_heads;
  attention.head_dim = layer.head_dim;
  attention.row_dim = layer.row_dim;
  attention.value_dim = layer.value_dim;
  attention.sliding_window = layer.sliding_window;
  attention.softmax_scale =
      layer.softmax_scale > 0.0f ? layer.softmax_scale : 1.0f / std::sqrt(static_cast<float>(attention.query_dim()));
  attention.soft_cap = layer.soft_cap;
  plan.sink_logits = layer.sink_logits;
  if (!plan.sink_logits.empty() && static_cast<int>(plan.sink_logits.size()) != layer.query_heads) {
    refuse("has " + std::to_string(layer.query_heads) + " query heads, but " + std::to_string(plan.sink_logits.size()) +
           " sink logits");
  }
  attention.fast = config.precision == Precision::kFast;
  attention.rows = backend_at(backend).rows;
  plan.match = &resolve_match(backend);
  if (attention.latent() && !codec_at(codec_index(layer.sides[0].codec)).alone) {
    refuse("has one row for keys and values, which codec " + layer.sides[0].codec + " cannot hold");
  }
  for (Side side : {Side::kKeys, Side::kValues}) {
    const int i = static_cast<int>(side);
    const SideConfig wanted = attention.latent() ? shared_side(layer, side, attention.formats[0]) : layer.sides[i];
    const int codec = codec_index(wanted.codec);
    const Codec& row = codec_at(codec);
    const ResolvedCodec resolved = resolve_codec(backend, codec);
    PageFormat& format = attention.formats[i];
    format = configure_codec(codec, side, wanted.bits, layer.head_dim, wanted.options);
    attention.codecs[i] = resolved.kernels;
    plan.codecs[i] = &row;
    plan.fallback |= resolved.fallback;
    plan.wants_queries |= row.wants_queries && row.wants_queries(format);
    if (row.attach) plan.models[i] = row.attach(format, layer.kv_heads, layer.codebooks);
  }
  if (attention.latent()) {
    if (!layer.rope.empty()) refuse("has one row for keys and values, which RoPE cannot turn in it");
    if (!layer.key_scaling.empty()) refuse("has one row for keys and values, which key scaling is not for");
    plan.fallback = true;
  }
  plan_rope(layer, plan, refuse);

  PageShape shape;
  shape.formats[0] = attention.formats[0];
  shape.formats[1] = attention.formats[1];
  shape.kv_heads = layer.kv_heads;
  do {
    shape.width = widest_that_shrinks(plan.codecs, shape);
    plan.shapes.push_back(shape);
  } while (narrower_shape(plan.codecs, plan.shapes.back(), shape));

  plan.key_scaling = layer.key_scaling;
  const size_t factors = static_cast<size_t>(layer.kv_heads) * layer.head_dim;
  if (!plan.key_scaling.empty() && plan.key_scaling.size() != factors) {
    refuse("has " + std::to_string(factors) + " key channels, but " + std::to_string(plan.key_scaling.size()) +
           " factors for key scaling");
  }
  return plan;
}

}  // namespace

std::vector<LayerPlan> plan_layers(const CacheConfig::Impl& config, int backend) {
  std::vector<LayerPlan> plans;
  for (int i = 0; i < static_cast<int>(config.layers.size()); ++i) plans.push_back(plan_layer(config, i, backend));
  // Only now: moving a plan moves its vectors.
  for (LayerPlan& plan : plans) {
    plan.attention.key_scaling = plan.key_scaling.empty() ? nullptr : plan.key_scaling.data();
    plan.attention.sink_logits = plan.sink_logits.empty() ? nullptr : plan.sink_logits.data();
  }
  return plans;
}

}  // namespace kvasir
