package dev.kvasir.runner;

/**
 * How the next token is chosen. The steps, in this order: the repetition penalty, the temperature, then the cuts: top-k,
 * top-p, min-p; of what is left one token is drawn.
 *
 * @param temperature logits are divided by it; 0 takes the likeliest token and draws nothing
 * @param topK keeps so many of the likeliest; 0 keeps all
 * @param topP keeps the likeliest tokens that together reach this probability; 1 keeps all
 * @param minP drops tokens less likely than this part of the likeliest one's probability; 0 drops none
 * @param repetitionPenalty divides positive and multiplies negative logits of tokens seen lately; 1 is none
 * @param repetitionWindow how many of the latest tokens that means
 * @param seed of the draws: the same seed and logits give the same tokens
 */
public record Sampling(
    double temperature,
    int topK,
    double topP,
    double minP,
    double repetitionPenalty,
    int repetitionWindow,
    long seed) {

  /** Always the likeliest token. */
  public static final Sampling GREEDY = new Sampling(0, 0, 1, 0, 1, 64, 0);

  /** Checks the ranges. */
  public Sampling {
    require(temperature >= 0 && temperature <= 100, "temperature", temperature, "0..100");
    require(topK >= 0, "topK", topK, "0 or more");
    require(topP > 0 && topP <= 1, "topP", topP, "above 0, up to 1");
    require(minP >= 0 && minP <= 1, "minP", minP, "0..1");
    require(repetitionPenalty >= 0.01 && repetitionPenalty <= 100, "repetitionPenalty", repetitionPenalty, "0.01..100");
    require(repetitionWindow >= 0, "repetitionWindow", repetitionWindow, "0 or more");
  }

  /** Draws at a temperature, with no cuts. */
  public static Sampling temperature(double temperature, long seed) {
    return new Sampling(temperature, 0, 1, 0, 1, 64, seed);
  }

  /** Whether the token with the highest logit is taken, whatever came before. */
  boolean isGreedy() {
    return temperature == 0 && repetitionPenalty == 1;
  }

  private static void require(boolean good, String name, double value, String allowed) {
    if (!good) {
      throw new IllegalArgumentException(name + " is " + value + ", not " + allowed);
    }
  }
}
