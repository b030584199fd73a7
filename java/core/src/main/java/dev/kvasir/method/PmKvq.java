package dev.kvasir.method;

import dev.kvasir.CodecChoice;
import dev.kvasir.KvMethod;
import dev.kvasir.ShrinkPolicy;
import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.internal.Checks;
import dev.kvasir.internal.Records;
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
 * <p>Floors may differ by layer and side: {@link #floors} takes what a {@code BitAllocator} found. Key scaling, which
 * the paper adds, works with every method: see {@code KeyScaling.applyTo}.
 *
 * <p>How bits went down, what that freed and how long it took is in {@link dev.kvasir.KvStats.Shrinks}.
 *
 * @param startBits bits of new pages while there is room: 16, 8, 4 or 2
 * @param keyFloors least bits of a key element, by layer, or one number for all layers: 16, 8, 4 or 2
 * @param valueFloors least bits of a value element: the same
 * @param policy which pages shrink first
 * @param shift how codes shrink
 * @param window see {@link KvMethod#window}
 * @param sinks see {@link KvMethod#sinks}
 */
public record PmKvq(
    int startBits,
    List<Integer> keyFloors,
    List<Integer> valueFloors,
    ShrinkPolicy policy,
    Shift shift,
    int window,
    int sinks)
    implements KvMethod {

  /** How a code of 2b bits becomes one of b bits. The paper compares three ways; the last two lose more. */
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
   * @param shift how codes shrink
   * @param window see {@link KvMethod#window}
   * @param sinks see {@link KvMethod#sinks}
   * @throws IllegalArgumentException for a width that is not in the list, an empty list or a negative number
   */
  public PmKvq {
    requireWidth("startBits", startBits);
    keyFloors = List.copyOf(keyFloors);
    valueFloors = List.copyOf(valueFloors);
    requireFloors("keyFloors", keyFloors);
    requireFloors("valueFloors", valueFloors);
    Objects.requireNonNull(policy, "policy");
    Objects.requireNonNull(shift, "shift");
    Checks.requireNotNegative("window", window);
    Checks.requireNotNegative("sinks", sinks);
  }

  /**
   * From 16 bits down to the same floor everywhere, with the paper's one sink.
   *
   * @param bits 2, 4, 8 or 16
   * @return the method
   */
  public static PmKvq floor(int bits) {
    return floors(List.of(bits), List.of(bits));
  }

  /**
   * From 16 bits down to floors by layer, with the paper's one sink.
   *
   * @param keyBits least bits of a key element, by layer
   * @param valueBits least bits of a value element, by layer
   * @return the method
   */
  public static PmKvq floors(List<Integer> keyBits, List<Integer> valueBits) {
    return new PmKvq(16, keyBits, valueBits, ShrinkPolicy.OLDEST, Shift.EQUIVALENT, 0, 1);
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
   * This method with another way to shrink codes.
   *
   * @param shift the way
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
    return choice(floorOf("keyFloors", keyFloors, layer));
  }

  @Override
  public CodecChoice values(int layer) {
    return choice(floorOf("valueFloors", valueFloors, layer));
  }

  @Override
  public ShrinkPolicy shrinkPolicy() {
    return policy;
  }

  private CodecChoice choice(int floor) {
    return CodecChoice.of("progressive", startBits)
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
