package dev.kvasir.method;

import dev.kvasir.CodecChoice;
import dev.kvasir.KvCache;
import dev.kvasir.KvMethod;
import dev.kvasir.Need;
import dev.kvasir.internal.Checks;
import dev.kvasir.internal.Records;
import java.util.EnumSet;
import java.util.Objects;
import java.util.Set;

/**
 * MixKVQ: key channels of 16, 4 or 2 bits, chosen for each page and kv head by what a channel's error would do to the
 * attention scores; values at 2 bits.
 *
 * <pre>{@code
 * KvMethod method = MixKvq.budget(2.7);
 * }</pre>
 *
 * <p>The saliency of a channel is the mean magnitude of the queries in it times the step that 2-bit codes of its keys
 * would have: wide keys that no query looks at can do with 2 bits, modest keys that every query looks at cannot.
 * Queries are seen by attention as it is computed; those of a prompt whose attention is computed elsewhere should be
 * shown with {@code KvSequence.observe} before the prompt is appended. Until any are seen, all channels count alike.
 * Their sums take 12 bytes a channel of each kv head in every layer of a sequence, from its first token on.
 *
 * <p>How channels are spread over the widths, and the bits of keys with and without what is stored beside codes, is in
 * {@link dev.kvasir.KvStats.Layer}. {@code ThresholdSearch} finds thresholds for a model.
 *
 * @param mode what decides the width of a channel
 * @param tau16 channels whose saliency is above it keep 16 bits
 * @param tau4 channels above it, but not above {@code tau16}, have 4 bits; if it is the larger of the two, none have
 * @param averageKeyBits with {@link Mode#BUDGET}: bits of a channel, on average over those of a page, 2..16
 * @param queryAware whether saliency counts queries; if not it is the error alone, as in the paper's ablation
 * @param keyGroup tokens that share a channel's parameters: 32, 64 or 128
 * @param keyParameterBits bits of each of the two parameters of a channel's group: 16, or 8, which make ranges some
 *     per cent wider; on a GPU keys with 8 are read a tile at a time, which takes longer
 * @param valueBits bits of a value element: 1, 2, 3, 4, 8 or 16
 * @param valueGroup channels that share a value's parameters: 32, 64 or 128; 0 for the codec's default
 * @param grid where codes stand in the range of their group; keys of 4 bits always go from end to end, where cells gain
 *     nothing
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
    int keyParameterBits,
    int valueBits,
    int valueGroup,
    Grid grid,
    int window,
    int sinks)
    implements KvMethod {

  /** What decides the width of a channel. */
  public enum Mode {
    /** Thresholds on its saliency over the mean of all channels of its page and kv head. */
    NORMALISED(0),
    /** Thresholds on its saliency itself. */
    ABSOLUTE(1),
    /** An average: bits go to the channels where they lower the squared error of the scores most. */
    BUDGET(2);

    private final int code;

    Mode(int code) {
      this.code = code;
    }

    /**
     * The number that native code knows it by, for good.
     *
     * @return the code
     */
    public int code() {
      return code;
    }
  }

  /** Thresholds that the paper found for a model. */
  public enum PaperModel {
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

    PaperModel(double tau16, double tau4) {
      this.tau16 = tau16;
      this.tau4 = tau4;
    }
  }

  private static final double DEFAULT_KEY_BITS = 2.7;
  private static final int PAPER_SINKS = 32;
  private static final Set<Integer> GROUPS = Set.of(32, 64, KvCache.PAGE_TOKENS);

  /**
   * Checks the numbers. Whether a group fits the head dim is checked when a cache is built.
   *
   * @param mode what decides the width of a channel
   * @param tau16 threshold of the 16-bit tier
   * @param tau4 threshold of the 4-bit tier
   * @param averageKeyBits bits to aim at with {@link Mode#BUDGET}
   * @param queryAware whether saliency counts queries
   * @param keyGroup tokens that share a channel's parameters
   * @param keyParameterBits bits of each parameter of keys
   * @param valueBits bits of a value element
   * @param valueGroup channels that share a value's parameters
   * @param grid where codes stand in the range of their group
   * @param window see {@link KvMethod#window}
   * @param sinks see {@link KvMethod#sinks}
   * @throws IllegalArgumentException for a number out of its range
   */
  public MixKvq {
    Objects.requireNonNull(mode, "mode");
    Objects.requireNonNull(grid, "grid");
    Checks.require(tau16 >= 0 && tau16 < Double.POSITIVE_INFINITY, "tau16", tau16, "0 or more");
    Checks.require(tau4 >= 0 && tau4 < Double.POSITIVE_INFINITY, "tau4", tau4, "0 or more");
    Checks.require(averageKeyBits >= 2 && averageKeyBits <= 16, "averageKeyBits", averageKeyBits, "2..16");
    Checks.require(GROUPS.contains(keyGroup), "keyGroup", keyGroup, "32, 64 or 128");
    Checks.require(
        keyParameterBits == 8 || keyParameterBits == 16, "keyParameterBits", keyParameterBits, "8 or 16");
    Checks.require(
        valueBits >= 1 && valueBits <= 4 || valueBits == 8 || valueBits == 16,
        "valueBits", valueBits, "1, 2, 3, 4, 8 or 16");
    Checks.requireNotNegative("valueGroup", valueGroup);
    Checks.requireNotNegative("window", window);
    Checks.requireNotNegative("sinks", sinks);
  }

  /**
   * With thresholds on a channel's share of the mean saliency, groups of 32 and 2-bit values as in the paper; with
   * {@link Grid#BY_WIDTH} and 4 sinks. The paper's R = 128 newest tokens are a page that fills up, which every method
   * keeps in 16 bits.
   *
   * @param tau16 channels above it keep 16 bits
   * @param tau4 channels above it, but not above {@code tau16}, have 4 bits
   * @return the method
   */
  public static MixKvq thresholds(double tau16, double tau4) {
    return new MixKvq(
        Mode.NORMALISED, tau16, tau4, DEFAULT_KEY_BITS, true, 32, 16, 2, 32, Grid.BY_WIDTH, 0, Sinks.DEFAULT);
  }

  /**
   * As in the paper, with the thresholds that it found for a model, 32 sinks and {@link Grid#ENDS}.
   *
   * @param model the model
   * @return the method
   */
  public static MixKvq of(PaperModel model) {
    return thresholds(model.tau16, model.tau4).grid(Grid.ENDS).sinks(PAPER_SINKS);
  }

  /**
   * With as many bits for keys, on average, parameters not counted; otherwise as {@link #thresholds}.
   *
   * @param average bits of a channel, 2..16
   * @return the method
   */
  public static MixKvq budget(double average) {
    PaperModel any = PaperModel.R1_LLAMA_8B; // thresholds do not matter here
    return Records.with(thresholds(any.tau16, any.tau4).mode(Mode.BUDGET), "averageKeyBits", average);
  }

  /**
   * This method with another way to decide widths.
   *
   * @param mode the mode
   * @return a new method
   */
  public MixKvq mode(Mode mode) {
    return Records.with(this, "mode", mode);
  }

  /**
   * This method with or without an eye on queries.
   *
   * @param aware whether saliency counts queries; if not it is the error alone
   * @return a new method
   */
  public MixKvq queryAware(boolean aware) {
    return Records.with(this, "queryAware", aware);
  }

  /**
   * This method with another group size for keys.
   *
   * @param tokens 32, 64 or 128
   * @return a new method
   */
  public MixKvq keyGroup(int tokens) {
    return Records.with(this, "keyGroup", tokens);
  }

  /**
   * This method with another width for what keys store beside codes: with groups of 32, 8 bits save half a bit of a key.
   *
   * @param bits 8 or 16
   * @return a new method
   */
  public MixKvq keyParameterBits(int bits) {
    return Records.with(this, "keyParameterBits", bits);
  }

  /**
   * This method with another width for values.
   *
   * @param bits 1, 2, 3, 4, 8 or 16
   * @return a new method
   */
  public MixKvq valueBits(int bits) {
    return Records.with(this, "valueBits", bits);
  }

  /**
   * This method with another group size for values.
   *
   * @param channels 32, 64 or 128; 0 for the codec's default
   * @return a new method
   */
  public MixKvq valueGroup(int channels) {
    return Records.with(this, "valueGroup", channels);
  }

  /**
   * This method with another grid.
   *
   * @param grid the grid, of keys and values
   * @return a new method
   */
  public MixKvq grid(Grid grid) {
    return Records.with(this, "grid", grid);
  }

  /**
   * This method with another window.
   *
   * @param tokens see {@link KvMethod#window}
   * @return a new method
   */
  public MixKvq window(int tokens) {
    return Records.with(this, "window", tokens);
  }

  /**
   * This method with another number of sinks.
   *
   * @param tokens see {@link KvMethod#sinks}
   * @return a new method
   */
  public MixKvq sinks(int tokens) {
    return Records.with(this, "sinks", tokens);
  }

  @Override
  public String name() {
    String keys = mode == Mode.BUDGET ? "k" + averageKeyBits : "k(" + tau16 + "," + tau4 + ")";
    return "mix-" + keys + "v" + valueBits;
  }

  @Override
  public Set<Need> needs() {
    return queryAware ? EnumSet.of(Need.OBSERVED_QUERIES) : EnumSet.noneOf(Need.class);
  }

  @Override
  public CodecChoice keys(int layer) {
    CodecChoice grouped =
        grid.applyTo(CodecChoice.of("tiered", 2))
            .with("mode", mode.code())
            .with("queries", queryAware ? 1 : 0)
            .with("group", keyGroup);
    CodecChoice choice = keyParameterBits == 16 ? grouped : grouped.with("parameter_bits", keyParameterBits);
    return mode == Mode.BUDGET
        ? choice.with("key_bits", averageKeyBits)
        : choice.with("tau16", tau16).with("tau4", tau4);
  }

  @Override
  public CodecChoice values(int layer) {
    CodecChoice choice = grid.applyTo(CodecChoice.of("uniform", valueBits));
    return valueGroup == 0 ? choice : choice.with("group", valueGroup);
  }
}
