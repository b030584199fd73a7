package dev.kvasir.calibrate;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.Side;
import dev.kvasir.internal.Checks;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * Finds the widths that hurt least within a byte budget: an integer program over the layers' {@link Sensitivities}.
 *
 * <pre>{@code
 * BitPlan plan = BitAllocator.of(geometry, sensitivities, PageCost.perToken(geometry))
 *     .widths(2, 4, 8)
 *     .separateSides(true)
 *     .limits(0, 4, 16)            // layer 0 never below 4 bits
 *     .averageBits(2.75)
 *     .solve();
 * }</pre>
 *
 * <p>The bytes counted are those of pages, parameters included; the 16-bit windows and sinks of a cache come on top.
 * Layers that take keys and values from another one have no pages: they cost nothing, their sensitivities and limits do
 * not count, and the plan gives them the widths of the other. Among options of a layer with equal sensitivity the one
 * with fewer bytes is taken. Not for use by several threads.
 */
public final class BitAllocator {

  private static final Duration DEFAULT_TIME = Duration.ofSeconds(2);

  private final KvGeometry geometry;
  private final Sensitivities sensitivities;
  private final PageCost cost;
  private final int[] owners; // layers with keys and values of their own
  private final int[][] least;
  private final int[][] most;
  private Set<Integer> widths;
  private boolean separate;
  private Duration time = DEFAULT_TIME;
  private @Nullable Budget budget;

  /** A budget in bytes, and the pages of each layer that must fit in. */
  private record Budget(long bytes, long[] pages) {}

  private BitAllocator(KvGeometry geometry, Sensitivities sensitivities, PageCost cost) {
    this.geometry = geometry;
    this.sensitivities = sensitivities;
    this.cost = cost;
    this.owners = IntStream.range(0, geometry.layers()).filter(i -> geometry.source(i) == i).toArray();
    this.widths = new TreeSet<>(sensitivities.widths());
    this.least = new int[geometry.layers()][2];
    this.most = new int[geometry.layers()][2];
    for (int[] limits : most) {
      Arrays.fill(limits, Integer.MAX_VALUE);
    }
  }

  /**
   * An allocator without a budget, which must be set. Every width that the sensitivities know may be used, one for both
   * sides of a layer.
   *
   * @param geometry the model
   * @param sensitivities of its layers
   * @param cost of its pages
   * @return a new allocator
   * @throws IllegalArgumentException if the numbers of layers differ
   */
  public static BitAllocator of(KvGeometry geometry, Sensitivities sensitivities, PageCost cost) {
    Checks.require(
        geometry.layers() == sensitivities.layers(),
        "sensitivities of " + sensitivities.layers() + " layers for a model of " + geometry.layers());
    return new BitAllocator(geometry, sensitivities, cost);
  }

  /**
   * The widths to choose from.
   *
   * @param bits widths that the sensitivities know
   * @return this allocator
   * @throws IllegalArgumentException if there is none, or one that they do not know
   */
  public BitAllocator widths(int... bits) {
    Set<Integer> chosen = new TreeSet<>();
    for (int width : bits) {
      Checks.require(
          sensitivities.widths().contains(width),
          width + " bits: sensitivities are known for " + sensitivities.widths());
      chosen.add(width);
    }
    Checks.require(!chosen.isEmpty(), "no width to choose from");
    widths = chosen;
    return this;
  }

  /**
   * Whether keys and values of a layer may have different widths. False is the default.
   *
   * @param separate whether they may
   * @return this allocator
   */
  public BitAllocator separateSides(boolean separate) {
    this.separate = separate;
    return this;
  }

  /**
   * Limits for both sides of a layer.
   *
   * @param layer 0 .. layers-1
   * @param leastBits no width below this
   * @param mostBits no width above this
   * @return this allocator
   * @throws IllegalArgumentException if there is no such layer or the limits are no range
   */
  public BitAllocator limits(int layer, int leastBits, int mostBits) {
    return limits(layer, Side.KEYS, leastBits, mostBits).limits(layer, Side.VALUES, leastBits, mostBits);
  }

  /**
   * Limits for one side of a layer. Where both sides share a width, it must keep the limits of both.
   *
   * @param layer 0 .. layers-1
   * @param side keys or values
   * @param leastBits no width below this
   * @param mostBits no width above this
   * @return this allocator
   * @throws IllegalArgumentException if there is no such layer or the limits are no range
   */
  public BitAllocator limits(int layer, Side side, int leastBits, int mostBits) {
    Checks.layer(layer, geometry.layers());
    Checks.require(leastBits <= mostBits, "at least " + leastBits + " and at most " + mostBits + " bits");
    least[layer][side.code()] = leastBits;
    most[layer][side.code()] = mostBits;
    return this;
  }

  /**
   * A budget in bytes for the pages of a number of tokens. Replaces an earlier budget. A layer with a sliding window
   * counts the pages that its window touches at most.
   *
   * @param bytes of all layers together
   * @param tokens that must fit; whole pages are counted
   * @return this allocator
   * @throws IllegalArgumentException if a number is not positive
   */
  public BitAllocator budgetBytes(long bytes, long tokens) {
    Checks.require(bytes >= 1 && tokens >= 1, bytes + " bytes for " + tokens + " tokens");
    long[] pages = new long[geometry.layers()];
    for (int layer = 0; layer < pages.length; layer++) {
      pages[layer] = (tokens - 1) / KvCache.PAGE_TOKENS + 1;
      long window = geometry.slidingWindow(layer);
      if (window > 0) {
        // A window that begins with the last token of a page touches one page more than its length needs.
        pages[layer] = Math.min(pages[layer], (window - 1) / KvCache.PAGE_TOKENS + 2);
      }
    }
    budget = new Budget(bytes, pages);
    return this;
  }

  /**
   * A budget in bits per element, parameters included, on average over the elements that all layers store. Replaces an
   * earlier budget. The plan's bytes are then those of one page of each layer.
   *
   * @param bits for example 2.75
   * @return this allocator
   * @throws IllegalArgumentException if not positive and finite
   */
  public BitAllocator averageBits(double bits) {
    Checks.require(bits > 0 && bits < Double.POSITIVE_INFINITY, "an average of " + bits + " bits");
    double elements = 0;
    for (int layer : owners) {
      elements += 2.0 * KvCache.PAGE_TOKENS * geometry.rowSize(layer);
    }
    long[] pages = new long[geometry.layers()];
    Arrays.fill(pages, 1);
    budget = new Budget((long) Math.min(0x1p62, Math.floor(bits * elements / 8)), pages);
    return this;
  }

  /**
   * How long the integer program may take. When time runs out the best plan known is returned; it says whether it is
   * proven to be optimal. Two seconds are the default, many times of what 80 layers with separate sides and five widths
   * need.
   *
   * @param time positive
   * @return this allocator
   * @throws IllegalArgumentException if not positive
   */
  public BitAllocator timeLimit(Duration time) {
    Checks.require(!time.isZero() && !time.isNegative(), "a time of " + time);
    this.time = time;
    return this;
  }

  /**
   * Searches.
   *
   * @return the plan
   * @throws InfeasibleBudgetException if the narrowest widths within the limits do not fit
   * @throws IllegalArgumentException if a layer's limits leave no width
   * @throws IllegalStateException if no budget was set
   */
  public BitPlan solve() {
    Budget wanted = budget;
    if (wanted == null) {
      throw new IllegalStateException("no budget was set");
    }
    try {
      return solve(wanted);
    } catch (ArithmeticException e) {
      throw new IllegalArgumentException("the bytes of all layers together fit no long", e);
    }
  }

  private BitPlan solve(Budget wanted) {
    List<Integer> order = List.copyOf(widths);
    List<KnapsackGroup> groups = new ArrayList<>();
    List<Set<Side>> choices =
        separate ? List.of(Set.of(Side.KEYS), Set.of(Side.VALUES)) : List.of(Set.of(Side.values()));
    for (int layer : owners) {
      for (Set<Side> sides : choices) {
        groups.add(group(layer, sides, order, wanted.pages[layer]));
      }
    }
    double losses = groups.stream().mapToDouble(KnapsackGroup::largestLoss).sum();
    Checks.require(losses < Double.POSITIVE_INFINITY, "the sensitivities of all layers together fit no double");
    Knapsack.Solution solution = new Knapsack(groups, wanted.bytes).solve(time);
    return plan(solution, groups, wanted.bytes);
  }

  /** The widths that a layer's sides may share, with their bytes and sensitivities. */
  private KnapsackGroup group(int layer, Set<Side> sides, List<Integer> order, long pages) {
    KnapsackGroup group = new KnapsackGroup();
    for (int width : order) {
      long bytes = 0;
      double sensitivity = 0;
      boolean allowed = true;
      for (Side side : sides) {
        int s = side.code();
        allowed &= width >= least[layer][s] && width <= most[layer][s];
        bytes = Math.addExact(bytes, Math.multiplyExact(pages, requirePositive(cost.bytes(layer, side, width))));
        sensitivity += sensitivities.of(layer, side, width);
      }
      if (allowed) {
        group.add(width, bytes, sensitivity);
      }
    }
    Checks.require(!group.isEmpty(), "layer " + layer + ": none of the widths " + order + " keeps its limits");
    return group;
  }

  private BitPlan plan(Knapsack.Solution solution, List<KnapsackGroup> groups, long budgetBytes) {
    int[][] chosen = new int[geometry.layers()][2];
    double objective = 0;
    long bytes = 0;
    for (int i = 0; i < groups.size(); i++) {
      KnapsackGroup.Option option = solution.options().get(i);
      objective += option.loss();
      bytes = Math.addExact(bytes, option.cost());
      if (separate) {
        chosen[owners[i / 2]][i % 2] = option.label();
      } else {
        Arrays.fill(chosen[owners[i]], option.label());
      }
    }
    return new BitPlan(
        bits(chosen, Side.KEYS), bits(chosen, Side.VALUES), objective, bytes, budgetBytes, solution.optimal());
  }

  /** One side's widths by layer, of widths by layer with rows of its own and side. */
  private List<Integer> bits(int[][] chosen, Side side) {
    return IntStream.range(0, chosen.length)
        .mapToObj(layer -> chosen[geometry.source(layer)][side.code()])
        .collect(Collectors.toList());
  }

  private static long requirePositive(long bytes) {
    Checks.require(bytes >= 1, "a page of " + bytes + " bytes");
    return bytes;
  }
}
