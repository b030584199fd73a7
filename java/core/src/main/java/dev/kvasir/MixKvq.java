package dev.kvasir;

import java.util.Objects;

/**
 * MixKVQ: key channels of 16, 4 or 2 bits, chosen for each page and kv head by what a channel's error would do to the
 * attention scores; values at 2 bits.
 *
 * <pre>{@code
 * KvMethod method = MixKvq.keyBits(2.7);
 * }</pre>
 *
 * <p>The saliency of a channel is the mean magnitude of the queries in it times the step that 2-bit codes of its keys
 * would have: wide keys that no query looks at can do with 2 bits, modest keys that every query looks at cannot.
 * Queries are seen by attention as it is computed; those of a prompt whose attention is computed elsewhere should be
 * shown with {@link KvSequence#observe} before the prompt is appended. Until any are seen, all channels count alike.
 *
 * <p>How channels are spread over the widths, and the bits of keys with and without what is stored beside codes, is in
 * {@link KvStats.Layer}. {@code ThresholdSearch} finds thresholds for a model.
 *
 * @param mode what decides the width of a channel
 * @param tau16 channels whose saliency is above it keep 16 bits
 * @param tau4 channels above it, but not above {@code tau16}, have 4 bits; if it is the larger of the two, none have
 * @param averageKeyBits with {@link Mode#BUDGET}: bits of a channel, on average over those of a page, 2..16
 * @param queryAware whether saliency counts queries; if not it is the error alone, as in the paper's ablation
 * @param keyGroup tokens that share a channel's parameters: 32, 64 or 128
 * @param valueBits bits of a value element: 1, 2, 3, 4, 8 or 16
 * @param valueGroup channels that share a value's parameters: 32, 64 or 128; 0 for the codec's default
 * @param window see {@link KvMethod#window}
 * @param sinks see {@link KvMethod#sinks}
 */
public record MixKvq(
    Mode mode,
    double tau16,
    double tau4,
    double averageKeyBits,
    boolean queryAware,
    int keyGroup,
    int valueBits,
    int valueGroup,
    int window,
    int sinks)
    implements KvMethod {

  /** What decides the width of a channel. */
  public enum Mode {
    /** Thresholds on its saliency over the mean of all channels of its page and kv head. */
    NORMALISED,
    /** Thresholds on its saliency itself. */
    ABSOLUTE,
    /** An average: bits go to the channels where they lower the squared error of the scores most. */
    BUDGET
  }

  /** Thresholds that the paper found for a model. */
  public enum Preset {
    /** DeepSeek-R1-Distill-Llama-8B. */
    R1_LLAMA_8B(1.44, 0.79),
    /** DeepSeek-R1-Distill-Qwen-7B. */
    R1_QWEN_7B(0.63, 0.41),
    /** DeepSeek-R1-Distill-Qwen-14B; no channel has 4 bits. */
    R1_QWEN_14B(1.52, 1.60),
    /** DeepSeek-R1-Distill-Qwen-32B. */
    R1_QWEN_32B(1.85, 1.58);

    private final double tau16;
    private final double tau4;

    Preset(double tau16, double tau4) {
      this.tau16 = tau16;
      this.tau4 = tau4;
    }
  }

  private static final double DEFAULT_KEY_BITS = 2.7;

  /**
   * Checks the numbers. Whether a group fits the head dim is checked when a cache is built.
   *
   * @param mode what decides the width of a channel
   * @param tau16 threshold of the 16-bit tier
   * @param tau4 threshold of the 4-bit tier
   * @param averageKeyBits bits to aim at with {@link Mode#BUDGET}
   * @param queryAware whether saliency counts queries
   * @param keyGroup tokens that share a channel's parameters
   * @param valueBits bits of a value element
   * @param valueGroup channels that share a value's parameters
   * @param window see {@link KvMethod#window}
   * @param sinks see {@link KvMethod#sinks}
   * @throws IllegalArgumentException for a number out of its range
   */
  public MixKvq {
    Objects.requireNonNull(mode, "mode");
    require(tau16 >= 0 && tau16 < Double.POSITIVE_INFINITY, "tau16", tau16, "0 or more");
    require(tau4 >= 0 && tau4 < Double.POSITIVE_INFINITY, "tau4", tau4, "0 or more");
    require(averageKeyBits >= 2 && averageKeyBits <= 16, "averageKeyBits", averageKeyBits, "2..16");
    require(keyGroup == 32 || keyGroup == 64 || keyGroup == 128, "keyGroup", keyGroup, "32, 64 or 128");
    require(
        valueBits >= 1 && valueBits <= 4 || valueBits == 8 || valueBits == 16,
        "valueBits", valueBits, "1, 2, 3, 4, 8 or 16");
    require(valueGroup >= 0, "valueGroup", valueGroup, "0 or more");
    require(window >= 0, "window", window, "0 or more");
    require(sinks >= 0, "sinks", sinks, "0 or more");
  }

  /**
   * With thresholds on a channel's share of the mean saliency and the paper's other settings: groups of 32, 2-bit
   * values, 32 sinks. Its R = 128 newest tokens are a page that fills up, which every method keeps in 16 bits.
   *
   * @param tau16 channels above it keep 16 bits
   * @param tau4 channels above it, but not above {@code tau16}, have 4 bits
   * @return the method
   */
  public static MixKvq thresholds(double tau16, double tau4) {
    return new MixKvq(Mode.NORMALISED, tau16, tau4, DEFAULT_KEY_BITS, true, 32, 2, 32, 0, 32);
  }

  /**
   * With the thresholds that the paper found for a model.
   *
   * @param preset the model
   * @return the method
   */
  public static MixKvq of(Preset preset) {
    return thresholds(preset.tau16, preset.tau4);
  }

  /**
   * With as many bits for keys, on average, parameters not counted; otherwise as {@link #thresholds}.
   *
   * @param average bits of a channel, 2..16
   * @return the method
   */
  public static MixKvq keyBits(double average) {
    MixKvq paper = of(Preset.R1_LLAMA_8B);
    return new MixKvq(
        Mode.BUDGET, paper.tau16, paper.tau4, average, true,
        paper.keyGroup, paper.valueBits, paper.valueGroup, paper.window, paper.sinks);
  }

  /**
   * This method with another way to decide widths.
   *
   * @param mode the mode
   * @return a new method
   */
  public MixKvq mode(Mode mode) {
    return new MixKvq(
        mode, tau16, tau4, averageKeyBits, queryAware, keyGroup, valueBits, valueGroup, window, sinks);
  }

  /**
   * This method with or without an eye on queries.
   *
   * @param aware whether saliency counts queries; if not it is the error alone
   * @return a new method
   */
  public MixKvq queryAware(boolean aware) {
    return new MixKvq(mode, tau16, tau4, averageKeyBits, aware, keyGroup, valueBits, valueGroup, window, sinks);
  }

  /**
   * This method with another group size for keys.
   *
   * @param tokens 32, 64 or 128
   * @return a new method
   */
  public MixKvq keyGroup(int tokens) {
    return new MixKvq(mode, tau16, tau4, averageKeyBits, queryAware, tokens, valueBits, valueGroup, window, sinks);
  }

  /**
   * This method with another width for values.
   *
   * @param bits 1, 2, 3, 4, 8 or 16
   * @return a new method
   */
  public MixKvq valueBits(int bits) {
    return new MixKvq(mode, tau16, tau4, averageKeyBits, queryAware, keyGroup, bits, valueGroup, window, sinks);
  }

  /**
   * This method with another group size for values.
   *
   * @param channels 32, 64 or 128; 0 for the codec's default
   * @return a new method
   */
  public MixKvq valueGroup(int channels) {
    return new MixKvq(mode, tau16, tau4, averageKeyBits, queryAware, keyGroup, valueBits, channels, window, sinks);
  }

  /**
   * This method with another window.
   *
   * @param tokens see {@link KvMethod#window}
   * @return a new method
   */
  public MixKvq window(int tokens) {
    return new MixKvq(mode, tau16, tau4, averageKeyBits, queryAware, keyGroup, valueBits, valueGroup, tokens, sinks);
  }

  /**
   * This method with another number of sinks.
   *
   * @param tokens see {@link KvMethod#sinks}
   * @return a new method
   */
  public MixKvq sinks(int tokens) {
    return new MixKvq(mode, tau16, tau4, averageKeyBits, queryAware, keyGroup, valueBits, valueGroup, window, tokens);
  }

  @Override
  public String name() {
    String keys = mode == Mode.BUDGET ? "k" + averageKeyBits : "k(" + tau16 + "," + tau4 + ")";
    return "mix-" + keys + "v" + valueBits;
  }

  @Override
  public CodecChoice keys(int layer) {
    CodecChoice choice =
        CodecChoice.of("tiered", 2)
            .with("mode", mode.ordinal())
            .with("queries", queryAware ? 1 : 0)
            .with("group", keyGroup);
    return mode == Mode.BUDGET
        ? choice.with("key_bits", averageKeyBits)
        : choice.with("tau16", tau16).with("tau4", tau4);
  }

  @Override
  public CodecChoice values(int layer) {
    CodecChoice choice = CodecChoice.of("uniform", valueBits);
    return valueGroup == 0 ? choice : choice.with("group", valueGroup);
  }

  private static void require(boolean good, String name, Object value, String allowed) {
    if (!good) {
      throw new IllegalArgumentException(name + " is " + value + ", not " + allowed);
    }
  }
}
