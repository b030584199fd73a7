package dev.kvasir.prefix.simulate;

import java.util.ArrayList;
import java.util.List;
import java.util.PriorityQueue;
import java.util.Random;

/**
 * Requests of many tenants, in the order of their arrival. A request is the blocks of its prompt, each named by all before it:
 * a system prompt that everybody shares, mostly a document of the tenant, and a conversation that grows from turn to turn.
 * Which prompts, tenants and documents go by Zipf's law; some prompts come once and never again.
 */
final class Trace {

  private static final int SYSTEM_PROMPTS = 50;
  private static final int TENANTS = 500;
  private static final int DOCUMENTS = 40; // of a tenant
  private static final double ONCE = 0.2; // of new conversations
  private static final double GOES_ON = 0.75; // after a turn
  private static final double THINKING = 60; // seconds between turns, on average

  /** The blocks of a prompt, those of its answer, and where it went. */
  record Request(double time, Run[] text, int answerFrom, int node) {}

  private record Turn(double time, long conversation, List<Run> text, int node) {}

  private final Random random;
  private final int nodes;
  private final double arrivals;
  private final boolean together;
  private final double[] systemWeights = zipf(SYSTEM_PROMPTS, 1.0);
  private final double[] tenantWeights = zipf(TENANTS, 0.9);
  private final double[] documentWeights = zipf(DOCUMENTS, 1.0);
  private final PriorityQueue<Turn> turns = new PriorityQueue<>((a, b) -> Double.compare(a.time, b.time));
  private double nextArrival;
  private long conversations;

  /**
   * A trace that goes on for ever.
   *
   * @param arrivals new conversations a second, on each node
   * @param together whether all blocks of a prompt, a document, a question or an answer make one run
   */
  Trace(int nodes, double arrivals, boolean together, long seed) {
    this.nodes = nodes;
    this.arrivals = arrivals;
    this.together = together;
    this.random = new Random(seed);
  }

  Request next() {
    if (turns.isEmpty() || nextArrival < turns.peek().time) {
      turns.add(begin());
      nextArrival += exponential(1 / (arrivals * nodes));
    }
    Turn turn = turns.poll();
    List<Run> text = new ArrayList<>(turn.text);
    grow(text, turn.conversation, 1 + random.nextInt(4)); // the question
    int answer = text.size();
    grow(text, turn.conversation, 1 + random.nextInt(4));
    if (random.nextDouble() < GOES_ON) {
      // Mostly where it was before; sometimes that machine is busy.
      int node = random.nextDouble() < 0.8 ? turn.node : random.nextInt(nodes);
      turns.add(new Turn(turn.time + exponential(THINKING), turn.conversation, text, node));
    }
    return new Request(turn.time, text.toArray(new Run[0]), answer, turn.node);
  }

  private Turn begin() {
    long conversation = ++conversations;
    List<Run> text = new ArrayList<>();
    int system = draw(systemWeights);
    grow(text, -1 - system, 2 + mixed(system) % 14);
    if (random.nextDouble() < ONCE) {
      grow(text, conversation + (1L << 40), 16 + random.nextInt(64));
    } else {
      long tenant = draw(tenantWeights);
      long document = 1_000_000 + tenant * DOCUMENTS + draw(documentWeights);
      grow(text, -document, 8 + mixed(document) % 56);
    }
    return new Turn(nextArrival, conversation, text, random.nextInt(nodes));
  }

  private static int mixed(long value) {
    return (int) (mix(value) >>> 40);
  }

  /** Adds blocks of some content: their names go by all before them. */
  private void grow(List<Run> text, long content, int count) {
    for (int i = 0; i < count; i += together ? count : 1) {
      long before = text.isEmpty() ? 0 : text.get(text.size() - 1).name();
      text.add(new Run(mix(before ^ mix(content)), together ? count : 1));
    }
  }

  private double exponential(double mean) {
    return -mean * Math.log(1 - random.nextDouble());
  }

  private int draw(double[] cumulated) {
    double at = random.nextDouble();
    int low = 0;
    int high = cumulated.length - 1;
    while (low < high) {
      int middle = (low + high) / 2;
      if (cumulated[middle] < at) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  private static double[] zipf(int count, double exponent) {
    double[] cumulated = new double[count];
    double sum = 0;
    for (int i = 0; i < count; i++) {
      sum += 1 / Math.pow(i + 1, exponent);
      cumulated[i] = sum;
    }
    for (int i = 0; i < count; i++) {
      cumulated[i] /= sum;
    }
    return cumulated;
  }

  private static long mix(long z) {
    z += 0x9E3779B97F4A7C15L;
    z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
    z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
    return z ^ (z >>> 31);
  }
}
