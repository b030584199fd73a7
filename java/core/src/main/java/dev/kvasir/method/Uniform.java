package dev.kvasir.method;

import dev.kvasir.CodecChoice;
import dev.kvasir.KvMethod;
import dev.kvasir.internal.Checks;
import dev.kvasir.internal.Records;
import java.util.Objects;
import java.util.Set;

/**
 * Min-max quantisation in the manner of KIVI: keys per channel, values per token, unless told otherwise.
 *
 * <pre>{@code
 * KvMethod method = Uniform.bits(2).keyBits(4).keyGroup(32).window(128);
 * }</pre>
 *
 * <p>Each group of elements stores its minimum and its range in float16, 32 bits together, so a group of 128 costs a
 * quarter bit per element and one of 32 a whole bit.
 *
 * @param keyBits bits of a key element: 1, 2, 3, 4, 8 or 16
 * @param valueBits bits of a value element: the same
 * @param keyGroup elements in a group of keys: 32, 64 or 128; 0 for the codec's default
 * @param valueGroup elements in a group of values: 32, 64, 128 or the head dim; 0 for the codec's default
 * @param keyAxis what a group of keys runs along
 * @param valueAxis what a group of values runs along
 * @param grid where codes stand in the range of their group
 * @param window see {@link KvMethod#window}
 * @param sinks see {@link KvMethod#sinks}
 */
public record Uniform(
    int keyBits,
    int valueBits,
    int keyGroup,
    int valueGroup,
    Axis keyAxis,
    Axis valueAxis,
    Grid grid,
    int window,
    int sinks)
    implements KvMethod {

  private static final Set<Integer> WIDTHS = Set.of(1, 2, 3, 4, 8, 16);

  /**
   * Checks the numbers. Whether a group fits the head dim is checked when a cache is built.
   *
   * @param keyBits bits of a key element
   * @param valueBits bits of a value element
   * @param keyGroup elements in a group of keys
   * @param valueGroup elements in a group of values
   * @param keyAxis what a group of keys runs along
   * @param valueAxis what a group of values runs along
   * @param grid where codes stand in the range of their group
   * @param window see {@link KvMethod#window}
   * @param sinks see {@link KvMethod#sinks}
   * @throws IllegalArgumentException for a width that is not in the list or a negative number
   */
  public Uniform {
    requireWidth("keyBits", keyBits);
    requireWidth("valueBits", valueBits);
    Checks.requireNotNegative("keyGroup", keyGroup);
    Checks.requireNotNegative("valueGroup", valueGroup);
    Checks.requireNotNegative("window", window);
    Checks.requireNotNegative("sinks", sinks);
    Objects.requireNonNull(keyAxis, "keyAxis");
    Objects.requireNonNull(valueAxis, "valueAxis");
    Objects.requireNonNull(grid, "grid");
  }

  /**
   * Keys and values at the same width, groups as large as the codec has them, {@link Grid#BY_WIDTH}, 4 sinks, the
   * smallest window.
   *
   * @param bits 1, 2, 3, 4, 8 or 16
   * @return the method
   */
  public static Uniform bits(int bits) {
    return new Uniform(bits, bits, 0, 0, Axis.CHANNEL, Axis.TOKEN, Grid.BY_WIDTH, 0, Sinks.DEFAULT);
  }

  /**
   * The baseline of the KIVI paper, for comparisons: groups of 32, {@link Grid#ENDS}, no sinks, up to 127 newest tokens in
   * 16 bits.
   *
   * @param bits 1, 2, 3, 4, 8 or 16; the paper has 2 and 4
   * @return the method
   */
  public static Uniform kivi(int bits) {
    return new Uniform(bits, bits, 32, 32, Axis.CHANNEL, Axis.TOKEN, Grid.ENDS, 0, 0);
  }

  /**
   * This method with another width for keys.
   *
   * @param bits 1, 2, 3, 4, 8 or 16
   * @return a new method
   */
  public Uniform keyBits(int bits) {
    return Records.with(this, "keyBits", bits);
  }

  /**
   * This method with another width for values.
   *
   * @param bits 1, 2, 3, 4, 8 or 16
   * @return a new method
   */
  public Uniform valueBits(int bits) {
    return Records.with(this, "valueBits", bits);
  }

  /**
   * This method with another group size for keys.
   *
   * @param elements 32, 64 or 128; 0 for the codec's default
   * @return a new method
   */
  public Uniform keyGroup(int elements) {
    return Records.with(this, "keyGroup", elements);
  }

  /**
   * This method with another group size for values.
   *
   * @param elements 32, 64, 128 or the head dim; 0 for the codec's default
   * @return a new method
   */
  public Uniform valueGroup(int elements) {
    return Records.with(this, "valueGroup", elements);
  }

  /**
   * This method with key groups along another axis.
   *
   * @param axis the axis
   * @return a new method
   */
  public Uniform keyAxis(Axis axis) {
    return Records.with(this, "keyAxis", axis);
  }

  /**
   * This method with value groups along another axis.
   *
   * @param axis the axis
   * @return a new method
   */
  public Uniform valueAxis(Axis axis) {
    return Records.with(this, "valueAxis", axis);
  }

  /**
   * This method with another grid.
   *
   * @param grid the grid, of keys and values
   * @return a new method
   */
  public Uniform grid(Grid grid) {
    return Records.with(this, "grid", grid);
  }

  /**
   * This method with another window.
   *
   * @param tokens see {@link KvMethod#window}
   * @return a new method
   */
  public Uniform window(int tokens) {
    return Records.with(this, "window", tokens);
  }

  /**
   * This method with another number of sinks.
   *
   * @param tokens see {@link KvMethod#sinks}
   * @return a new method
   */
  public Uniform sinks(int tokens) {
    return Records.with(this, "sinks", tokens);
  }

  @Override
  public String name() {
    return "uniform-k" + keyBits + "v" + valueBits;
  }

  @Override
  public CodecChoice keys(int layer) {
    return choice(keyBits, keyAxis, keyGroup);
  }

  @Override
  public CodecChoice values(int layer) {
    return choice(valueBits, valueAxis, valueGroup);
  }

  private CodecChoice choice(int bits, Axis axis, int group) {
    CodecChoice choice = grid.applyTo(CodecChoice.of("uniform", bits)).with("axis", axis.code());
    return group == 0 ? choice : choice.with("group", group);
  }

  private static void requireWidth(String name, int bits) {
    Checks.require(WIDTHS.contains(bits), name, bits, "1, 2, 3, 4, 8 or 16");
  }
}
