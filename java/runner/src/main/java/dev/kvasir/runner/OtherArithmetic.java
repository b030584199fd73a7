package dev.kvasir.runner;

import dev.kvasir.runner.file.Gguf;
import dev.kvasir.runner.file.ModelException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * What a GGUF file may say of an architecture that changes its arithmetic, and that is not done here. A file that says
 * so is refused by name: run as if it had said nothing, it would answer, and wrongly.
 */
final class OtherArithmetic {

  private static final Set<Double> NONE = Set.of(0.0);
  private static final Set<Double> NONE_OR_ONE = Set.of(0.0, 1.0);

  /** Numbers, and those that change nothing. */
  private static final Map<String, Set<Double>> NUMBERS =
      Map.ofEntries(
          Map.entry("attn_logit_softcapping", NONE),
          Map.entry("final_logit_softcapping", NONE),
          Map.entry("attention.clamp_kqv", NONE),
          Map.entry("attention.max_alibi_bias", NONE),
          Map.entry("attention.temperature_scale", NONE),
          Map.entry("attention.shared_kv_layers", NONE),
          Map.entry("expert_count", NONE),
          Map.entry("leading_dense_block_count", NONE),
          Map.entry("nextn_predict_layers", NONE),
          Map.entry("full_attention_interval", NONE),
          Map.entry("logit_scale", NONE_OR_ONE),
          Map.entry("embedding_scale", NONE_OR_ONE),
          Map.entry("residual_scale", NONE_OR_ONE),
          Map.entry("attention.output_scale", NONE_OR_ONE),
          Map.entry("attention.value_scale", NONE_OR_ONE),
          Map.entry("rope.scaling.alpha", NONE),
          Map.entry("rope.scaling.yarn_log_multiplier", NONE));

  /** Flags, and what they are where they change nothing. */
  private static final Map<String, Boolean> FLAGS =
      Map.of("attention.causal", true, "use_parallel_residual", false, "swin_norm", false);

  /** What makes layers, or channels of a head, unlike each other, whatever it says. */
  private static final List<String> NEVER =
      List.of(
          "attention.sliding_window_pattern", "attention.key_length_swa", "attention.value_length_swa",
          "attention.key_length_mla", "attention.value_length_mla", "attention.recurrent_layers",
          "rope.dimension_sections", "rope.dimension_count_swa", "rope.freq_base_swa");

  private OtherArithmetic() {}

  /** Throws ModelException where the file says any of this of its architecture, or has a part of a model alone. */
  static void refuse(Gguf file, String architecture, int headDim) throws IOException {
    List<String> found = new ArrayList<>();
    for (Map.Entry<String, Set<Double>> each : NUMBERS.entrySet()) {
      String key = architecture + "." + each.getKey();
      file.findNumber(key).filter(value -> !each.getValue().contains(value)).ifPresent(value -> add(found, key, value));
    }
    for (Map.Entry<String, Boolean> each : FLAGS.entrySet()) {
      String key = architecture + "." + each.getKey();
      file.findFlag(key).filter(value -> !value.equals(each.getValue())).ifPresent(value -> add(found, key, value));
    }
    for (String each : NEVER) {
      if (file.says(architecture + "." + each)) {
        found.add(architecture + "." + each + " is there");
      }
    }
    // The file has a float32, so it may not be the very quotient.
    double usual = 1 / Math.sqrt(headDim);
    String scale = architecture + ".attention.scale";
    file.findNumber(scale)
        .filter(value -> value != 0 && !(Math.abs(value - usual) < 1e-6 * usual))
        .ifPresent(value -> add(found, scale, value));
    // How far YaRN's frequencies count: negative is by the type of the scaling, which is wholly or not at all.
    boolean yarn = file.findText(architecture + ".rope.scaling.type").orElse("").equals("yarn");
    String extension = architecture + ".rope.scaling.yarn_ext_factor";
    file.findNumber(extension)
        .filter(value -> !(value < 0 || value == (yarn ? 1 : 0)))
        .ifPresent(value -> add(found, extension, value));
    String magnitude = architecture + ".rope.scaling.yarn_attn_factor";
    file.findNumber(magnitude).filter(value -> !yarn && value != 1).ifPresent(value -> add(found, magnitude, value));
    if (!found.isEmpty()) {
      throw new ModelException(file.path() + ": " + String.join(", ", found) + ", which cannot be run");
    }
  }

  private static void add(List<String> found, String key, Object value) {
    found.add(key + " is " + value);
  }
}
