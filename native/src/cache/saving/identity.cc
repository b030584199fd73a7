#include "cache/saving/identity.h"

#include <cstdio>

#include "base/checks.h"
#include "base/half.h"

namespace kvasir {
namespace {

std::string exact(double number) { return number_text(number, 17); }

std::string name_of(const std::vector<float>& numbers) {
  if (numbers.empty()) return "none";
  return hex(Sha256().add(numbers.data(), numbers.size() * sizeof(float)).finish());
}

std::string rope_of(const LayerPlan& plan) {
  if (!plan.turns) return "none";
  Sha256 sum;
  sum.add(plan.frequencies.data(), plan.frequencies.size() * sizeof(double));
  return std::string(plan.attention.pairs == RopePairs::kHalves ? "halves" : "neighbours") + " magnitude " +
         exact(plan.magnitude) + " frequencies " + hex(sum.finish());
}

std::string side_of(const LayerPlan& plan, int side) {
  const PageFormat& format = plan.attention.formats[side];
  std::string text = std::string(plan.codecs[side]->name) + " bits " + std::to_string(format.bits) + " axis " +
                     std::to_string(static_cast<int>(format.axis)) + " grid " +
                     std::to_string(static_cast<int>(format.grid)) + " group " + std::to_string(format.group) +
                     " bytes " + std::to_string(format.page_bytes) + " head " + std::to_string(format.head_bytes) +
                     " options";
  for (const float number : format.numbers) {  // by their bits: some of them are no floats
    char bits[12];
    std::snprintf(bits, sizeof bits, " %x", static_cast<unsigned>(float_bits(number)));
    text += bits;
  }
  if (format.model) {
    uint8_t digest[32];
    format.model->content(digest);
    text += " model " + hex(digest, sizeof digest);
  }
  return text;
}

std::string layer_text(const LayerPlan& plan) {
  const AttentionLayer& layer = plan.attention;
  std::string text = "  heads " + std::to_string(layer.query_heads) + " kv " + std::to_string(layer.kv_heads) +
                     " dim " + std::to_string(layer.head_dim) + "\n";
  if (layer.latent()) {
    text += "  shared rows of " + std::to_string(layer.row_dim) + " values " + std::to_string(layer.value_dim) + "\n";
  }
  if (!plan.owns_rows()) text += "  rows of layer " + std::to_string(plan.source) + "\n";
  text += "  sliding window " + std::to_string(layer.sliding_window) + "\n";
  text += "  softmax scale " + exact(static_cast<double>(layer.softmax_scale)) + "\n";
  text += "  soft cap " + exact(static_cast<double>(layer.soft_cap)) + "\n";
  text += "  sink logits " + name_of(plan.sink_logits) + "\n";
  text += "  key scaling " + name_of(plan.key_scaling) + "\n";
  text += "  rope " + rope_of(plan) + "\n";
  text += "  keys " + side_of(plan, 0) + "\n";
  text += "  values " + side_of(plan, 1) + "\n";
  return text;
}

std::string describe(const std::vector<LayerPlan>& plans, const std::string& model) {
  std::string text = "kvasir sequences 1\n";
  text += "model " + (model.empty() ? "unknown" : model) + "\n";
  text += "page tokens " + std::to_string(kPageTokens) + "\n";
  text += "sinks " + std::to_string(plans[0].sinks) + "\n";
  text += "window " + std::to_string(plans[0].window) + "\n";
  std::vector<std::string> layers;
  for (const LayerPlan& plan : plans) layers.push_back(layer_text(plan));
  // Neighbours that are alike are told together.
  for (size_t first = 0, end = 0; first < layers.size(); first = end) {
    while (end < layers.size() && layers[end] == layers[first]) ++end;
    text += "layers " + std::to_string(first) + " to " + std::to_string(end - 1) + "\n" + layers[first];
  }
  return text;
}

}  // namespace

Identity::Identity(const std::vector<LayerPlan>& plans, const std::string& model)
    : text(describe(plans, model)), fingerprint(Sha256().add(text.data(), text.size()).finish()) {}

}  // namespace kvasir
