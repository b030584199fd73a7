package dev.kvasir.method;

import dev.kvasir.CodecChoice;
import dev.kvasir.KvMethod;
import dev.kvasir.Need;
import dev.kvasir.ShrinkPolicy;
import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.internal.Checks;
import dev.kvasir.internal.Records;
import java.util.EnumSet;
import java.util.List;
import java.util.Objects;
import java.util.Set;

/**
 * PM-KVQ: pages start at 16 bits and drop to 8, 4 and 2, in place, only when the budget asks for it.
 *
 * <pre>{@code
 * KvCache cache = KvCache.builder(geometry).method(PmKvq.floor(2)).budgetBytes(2L << 30).build();
 * }</pre>
 *
 * <p>Before tokens that do not fit are stored, older pages lose half of their bits, until there is room or all are at
 * their floor; then {@link BudgetExceededException} says what is missing, and nothing has changed. A page that dropped
 * to b bits holds what it would hold had it been quantised at b bits from the start. Sequences of a cache share its
 * budget, and forks share pages, which shrink once for all of them. Without a budget nothing ever shrinks.
 *
 * <p>Floors may differ by layer and side: {@link #floors} takes what a {@code BitAllocator} found.
 *
 * <p>The paper quantises keys per token, after key scaling ({@code KeyScaling.applyTo}); where channels differ by decades,
 * keys per token without it are lost. So keys are quantised per channel, as {@link Uniform} does, unless they are scaled.
 * Pages are quantised to {@link Grid#CELLS}, whose codes shrink by dropping bits; {@link #paper} has what the paper has.
 *
 * <p>How bits went down, what that freed and how long it took is in {@link dev.kvasir.KvStats.Shrinks}.
 *
 * @param startBits bits of new pages while there is room: 16, 8, 4 or 2
 * @param keyFloors least bits of a key element, by layer, or one number for all layers: 16, 8, 4 or 2
 * @param valueFloors least bits of a value element: the same
 * @param policy which pages shrink first
 * @param keyAxis what a group of keys runs along
 * @param grid where codes stand in the range of their group: {@link Grid#CELLS} or {@link Grid#ENDS}
 * @param shift how codes of {@link Grid#ENDS} shrink
 * @param window see {@link KvMethod#window}
 * @param sinks see {@link KvMethod#sinks}
 */
public record PmKvq(
    int startBits,
    List<Integer> keyFloors,
    List<Integer> valueFloors,
    ShrinkPolicy policy,
    KeyAxis keyAxis,
    Grid grid,
    Shift shift,
    int window,
    int sinks)
    implements KvMethod {

  /** What a group of keys runs along. */
  public enum KeyAxis {
    /** {@link #TOKEN} where keys are scaled, else {@link #CHANNEL}. */
    BY_SCALING,
    /** One channel over the tokens of a page: needs no scaling. */
    CHANNEL,
    /** One token over its channels, as in the paper: needs key scaling. */
    TOKEN
  }

  /**
   * How a code of 2b bits of {@link Grid#ENDS} becomes one of b bits; pages that are sealed below 16 bits have the codes
   * that shrinking would have left. The paper compares three ways. {@link #DIRECT} loses most. {@link #MODIFIED} has 2^b full
   * cells where {@link #EQUIVALENT} ends on the extremes: at 2 bits that is the nearer, at 4 and more they tie. Codes of
   * {@link Grid#CELLS} drop their lower half, and a cache refuses anything but {@link #EQUIVALENT} for them.
   */
  public enum Shift {
    /** To what quantising at b bits would have given. */
    EQUIVALENT(0),
    /** To its upper half, with the old parameters. For comparison only. */
    DIRECT(1),
    /** To its upper half, with parameters for the mean of the codes that share it. For comparison only. */
    MODIFIED(2);

    private final int code;

    Shift(int code) {
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

  private static final Set<Integer> WIDTHS = Set.of(2, 4, 8, 16);

  /**
   * Checks the numbers and copies the lists.
   *
   * @param startBits bits of new pages while there is room
   * @param keyFloors least bits of a key element
   * @param valueFloors least bits of a value element
   * @param policy which pages shrink first
   * @param keyAxis what a group of keys runs along
   * @param grid where codes stand in the range of their group
   * @param shift how codes of {@link Grid#ENDS} shrink
   * @param window see {@link KvMethod#window}
   * @param sinks see {@link KvMethod#sinks}
   * @throws IllegalArgumentException for a width that is not in the list, an empty list, {@link Grid#BY_WIDTH} (a page
   *     that shrinks keeps its grid) or a negative number
   */
  public PmKvq {
    requireWidth("startBits", startBits);
    keyFloors = List.copyOf(keyFloors);
    valueFloors = List.copyOf(valueFloors);
    requireFloors("keyFloors", keyFloors);
    requireFloors("valueFloors", valueFloors);
    Objects.requireNonNull(policy, "policy");
    Objects.requireNonNull(keyAxis, "keyAxis");
    Objects.requireNonNull(shift, "shift");
    Checks.require(Objects.requireNonNull(grid, "grid") != Grid.BY_WIDTH, "grid", grid, "CELLS or ENDS");
    Checks.requireNotNegative("window", window);
    Checks.requireNotNegative("sinks", sinks);
  }

  /**
   * From 16 bits down to the same floor everywhere, with 4 sinks.
   *
   * @param bits 2, 4, 8 or 16
   * @return the method
   */
  public static PmKvq floor(int bits) {
    return floors(List.of(bits), List.of(bits));
  }

  /**
   * From 16 bits down to floors by layer, with 4 sinks.
   *
   * @param keyBits least bits of a key element, by layer
   * @param valueBits least bits of a value element, by layer
   * @return the method
   */
  public static PmKvq floors(List<Integer> keyBits, List<Integer> valueBits) {
    return new PmKvq(
        16,
        keyBits,
        valueBits,
        ShrinkPolicy.OLDEST,
        KeyAxis.BY_SCALING,
        Grid.CELLS,
        Shift.EQUIVALENT,
        0,
        Sinks.DEFAULT);
  }

  /**
   * As in the paper, for comparisons: keys per token, {@link Grid#ENDS}, one sink, all pages of a layer shrink together.
   * Needs key scaling.
   *
   * @param bits 2, 4, 8 or 16
   * @return the method
   */
  public static PmKvq paper(int bits) {
    return floor(bits).keyAxis(KeyAxis.TOKEN).grid(Grid.ENDS).policy(ShrinkPolicy.LAYER).sinks(1);
  }

  /**
   * This method with fewer bits to start from. A floor above them becomes them.
   *
   * @param bits 2, 4, 8 or 16
   * @return a new method
   */
  public PmKvq startBits(int bits) {
    return Records.with(this, "startBits", bits);
  }

  /**
   * This method with another policy.
   *
   * @param policy the policy
   * @return a new method
   */
  public PmKvq policy(ShrinkPolicy policy) {
    return Records.with(this, "policy", policy);
  }

  /**
   * This method with groups of keys along another axis.
   *
   * @param axis the axis
   * @return a new method
   */
  public PmKvq keyAxis(KeyAxis axis) {
    return Records.with(this, "keyAxis", axis);
  }

  /**
   * This method with another grid.
   *
   * @param grid {@link Grid#CELLS} or {@link Grid#ENDS}
   * @return a new method
   */
  public PmKvq grid(Grid grid) {
    return Records.with(this, "grid", grid);
  }

  /**
   * This method with another way to shrink codes.
   *
   * @param shift the way, for codes of {@link Grid#ENDS}
   * @return a new method
   */
  public PmKvq shift(Shift shift) {
    return Records.with(this, "shift", shift);
  }

  /**
   * This method with another window.
   *
   * @param tokens see {@link KvMethod#window}
   * @return a new method
   */
  public PmKvq window(int tokens) {
    return Records.with(this, "window", tokens);
  }

  /**
   * This method with another number of sinks.
   *
   * @param tokens see {@link KvMethod#sinks}
   * @return a new method
   */
  public PmKvq sinks(int tokens) {
    return Records.with(this, "sinks", tokens);
  }

  @Override
  public String name() {
    return "pm-" + startBits + "to" + floorText();
  }

  @Override
  public CodecChoice keys(int layer) {
    Axis axis = keyAxis == KeyAxis.TOKEN ? Axis.TOKEN : Axis.CHANNEL;
    return choice(floorOf("keyFloors", keyFloors, layer)).with("axis", axis.code());
  }

  @Override
  public CodecChoice values(int layer) {
    return choice(floorOf("valueFloors", valueFloors, layer));
  }

  @Override
  public ShrinkPolicy shrinkPolicy() {
    return policy;
  }

  @Override
  public Set<Need> needs() {
    return keyAxis == KeyAxis.TOKEN ? EnumSet.of(Need.KEY_SCALING) : EnumSet.noneOf(Need.class);
  }

  @Override
  public PmKvq forScaledKeys() {
    return keyAxis == KeyAxis.BY_SCALING ? keyAxis(KeyAxis.TOKEN) : this;
  }

  private CodecChoice choice(int floor) {
    return grid.applyTo(CodecChoice.of("progressive", startBits))
        .with("floor", Math.min(floor, startBits))
        .with("shift", shift.code());
  }

  private String floorText() {
    boolean alike = keyFloors.equals(valueFloors) && Set.copyOf(keyFloors).size() == 1;
    return alike ? keyFloors.get(0).toString() : "plan";
  }

  private static int floorOf(String name, List<Integer> floors, int layer) {
    Checks.require(
        floors.size() == 1 || layer < floors.size(),
        name + " has " + floors.size() + " numbers, none for layer " + layer);
    return floors.size() == 1 ? floors.get(0) : floors.get(layer);
  }

  private static void requireFloors(String name, List<Integer> floors) {
    Checks.require(!floors.isEmpty(), name + " is empty");
    floors.forEach(bits -> requireWidth(name, bits));
  }

  private static void requireWidth(String name, int bits) {
    Checks.require(WIDTHS.contains(bits), name, bits, "2, 4, 8 or 16");
  }
}
