package dev.kvasir.runner;

import dev.kvasir.rope.Rope;
import dev.kvasir.rope.RopePairs;
import dev.kvasir.runner.file.Gguf;
import dev.kvasir.runner.file.Json;
import dev.kvasir.runner.file.ModelException;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Map;
import java.util.Optional;

/**
 * The rotary embedding that a model's files describe. Hugging Face's weights turn the two halves of a head; GGUF keeps
 * that order but for Llama's, whose query and key rows were re-ordered so that neighbours turn together.
 */
final class RopeSettings {

  private static final String PLAIN = "default";
  private static final double BETA_FAST = 32;
  private static final double BETA_SLOW = 1;

  private RopeSettings() {}

  /** From a config.json: plain, linear, llama3 or yarn. */
  static Rope of(Json config, int headDim, Path file) throws ModelException {
    // Newer files gather everything in rope_parameters.
    Json scaling = config.find("rope_parameters").or(() -> config.find("rope_scaling")).orElse(null);
    double base = config.find("rope_theta").map(Json::number).orElse(10000.0);
    if (scaling != null) {
      base = scaling.find("rope_theta").map(Json::number).orElse(base);
    }
    requireWhole(config, file);
    if (scaling != null) {
      requireWhole(scaling, file);
      for (Map.Entry<String, Json> each : scaling.map().entrySet()) {
        if (each.getValue().isObject()) {
          throw new ModelException(
              file + ": a rope of their own for layers of " + ModelConfig.shown(each.getKey()) + " cannot be run");
        }
      }
    }
    Rope plain = Rope.plain(RopePairs.HALVES, base, headDim);
    String type = scaling == null ? PLAIN : typeOf(scaling, file);
    switch (type) {
      case PLAIN:
        return plain;
      case "linear":
        return plain.linear(scaling.get("factor").number());
      case "llama3":
        return plain.llama3(
            scaling.get("factor").number(),
            scaling.get("low_freq_factor").number(),
            scaling.get("high_freq_factor").number(),
            scaling.get("original_max_position_embeddings").number());
      case "yarn":
        if (scaling.find("mscale").isPresent()) {
          throw new ModelException(file + ": yarn with an mscale cannot be run");
        }
        if (!scaling.find("truncate").map(Json::flag).orElse(true)) {
          throw new ModelException(file + ": yarn whose truncate is false cannot be run");
        }
        Rope turned =
            plain.yarn(
                scaling.get("factor").number(),
                scaling.find("beta_fast").map(Json::number).orElse(BETA_FAST),
                scaling.find("beta_slow").map(Json::number).orElse(BETA_SLOW),
                scaling
                    .find("original_max_position_embeddings")
                    .or(() -> config.find("original_max_position_embeddings"))
                    .or(() -> config.find("max_position_embeddings"))
                    .map(Json::number)
                    .orElseThrow(() -> new Json.JsonException(file + ": yarn without an original context")));
        // In place of YaRN's own, as in transformers, which passes over the attn_factor that some files have.
        return scaling.find("attention_factor").map(Json::number).map(turned::attentionFactor).orElse(turned);
      default:
        throw new ModelException(
            file + ": rope scaling is \"" + ModelConfig.shown(type) + "\"; default, linear, llama3 and yarn can be run");
    }
  }

  private static String typeOf(Json scaling, Path file) throws ModelException {
    Optional<Json> type = scaling.find("rope_type").or(() -> scaling.find("type"));
    if (type.isEmpty() && scaling.find("factor").isPresent()) {
      throw new ModelException(file + ": a rope is scaled, and no rope_type says how");
    }
    return type.map(Json::text).orElse(PLAIN);
  }

  private static void requireWhole(Json settings, Path file) throws ModelException {
    double part = settings.find("partial_rotary_factor").map(Json::number).orElse(1.0);
    if (part != 1) {
      throw new ModelException(file + ": partial_rotary_factor is " + part + "; heads that turn whole can be run");
    }
  }

  /**
   * From metadata, and from the tensor of factors that stands for Llama 3's scaling. What a file leaves out is what
   * llama.cpp takes it for: a factor alone is linear, and 0 is none.
   */
  static Rope of(Gguf file, String architecture, int headDim) throws IOException {
    Rope rope = turns(file, architecture, headDim);
    String key = architecture + ".rope.scaling.attn_factor";
    double factor = file.findNumber(key).orElse(1.0);
    if (!(factor > 0 && factor < Double.POSITIVE_INFINITY)) {
      throw new ModelException(file.path() + ": " + key + " is " + factor);
    }
    // On top of what YaRN has itself, and without YaRN, too.
    return factor == 1 ? rope : rope.attentionFactor(rope.attentionFactor() * factor);
  }

  private static Rope turns(Gguf file, String architecture, int headDim) throws IOException {
    String name = architecture + ".rope.";
    int turned = file.findInteger(name + "dimension_count").orElse(headDim);
    if (turned != headDim) {
      throw new ModelException(file.path() + ": " + turned + " of " + headDim + " channels turn; all can");
    }
    RopePairs pairs = architecture.equals("llama") ? RopePairs.NEIGHBOURS : RopePairs.HALVES;
    Rope rope = Rope.plain(pairs, file.findNumber(name + "freq_base").orElse(10000.0), headDim);
    boolean divided = file.has("rope_freqs.weight");
    if (divided) {
      float[] factors = file.read("rope_freqs.weight").require(1, headDim / 2).floats();
      double[] frequencies = rope.frequencies();
      for (int j = 0; j < frequencies.length; j++) {
        frequencies[j] /= factors[j];
      }
      rope = Rope.of(pairs, frequencies);
    }
    String type = file.findText(name + "scaling.type").orElse("linear");
    double older = file.findNumber(name + "scale_linear").orElse(1.0);
    double given = file.findNumber(name + "scaling.factor").orElse(older);
    double factor = given == 0 ? 1 : given;
    switch (type) {
      case "none":
        return rope;
      case "linear":
        return rope.linear(factor);
      case "yarn":
        if (divided) {
          throw new ModelException(file.path() + ": yarn and rope_freqs.weight together cannot be run");
        }
        int context = file.integer(architecture + ".context_length");
        Rope yarn =
            rope.yarn(
                factor,
                file.findNumber(name + "scaling.yarn_beta_fast").orElse(BETA_FAST),
                file.findNumber(name + "scaling.yarn_beta_slow").orElse(BETA_SLOW),
                file.findInteger(name + "scaling.original_context_length").orElse(context));
        requireOwnFactor(file, name + "scaling.yarn_attn_factor", yarn.attentionFactor());
        return yarn;
      default:
        throw new ModelException(
            file.path() + ": rope scaling is \"" + ModelConfig.shown(type) + "\"; none, linear and yarn can be run");
    }
  }

  /**
   * Converters write here what models call attention_factor, which is all of it, and what they call attn_factor, which comes
   * on top; llama.cpp reads neither for these architectures. One that leaves YaRN as it is says the same to all.
   */
  private static void requireOwnFactor(Gguf file, String key, double own) throws ModelException {
    double factor = file.findNumber(key).orElse(own);
    if (!(Math.abs(factor - own) < 1e-5)) {
      throw new ModelException(
          file.path() + ": " + key + " is " + factor + ", which cannot be run: YaRN's own is " + own
              + ", and whether it stands for that or comes on top is not said");
    }
  }
}
