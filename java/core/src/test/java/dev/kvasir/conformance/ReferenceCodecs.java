package dev.kvasir.conformance;

import java.util.Map;

/** The reference of each codec, by its name in the registry. */
final class ReferenceCodecs {

  static final Map<String, ReferenceCodec> ALL =
      Map.of(
          "f16", new F16Reference(),
          "pattern", new PatternReference(),
          "progressive", new ProgressiveReference(),
          "tiered", new TieredReference(),
          "uniform", new UniformReference());

  private ReferenceCodecs() {}

  static ReferenceCodec of(String codec) {
    ReferenceCodec reference = ALL.get(codec);
    if (reference == null) {
      throw new AssertionError("codec " + codec + " has no reference: write one and add it to ReferenceCodecs");
    }
    return reference;
  }
}
