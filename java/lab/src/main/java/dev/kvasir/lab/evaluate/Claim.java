package dev.kvasir.lab.evaluate;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.function.Function;
import java.util.function.ToDoubleFunction;

/**
 * Something that a paper says, as a comparison that an evaluation can make.
 *
 * @param text the claim in words
 * @param better the method that should be better
 * @param worse the method that it is compared with
 * @param metrics what is compared; the first decides
 * @param factor for "close to": how many times worse the first may be in the deciding metric; 1 for "better than"
 */
public record Claim(String text, String better, String worse, List<Metric> metrics, double factor) {

  /** A figure of a method, and which way is good. */
  public enum Metric {
    /** KL divergence from the 16-bit cache. */
    DIVERGENCE("KL", false, MethodResult::texts, TextScore::divergence, TextScore::compared),
    /** Bits per byte beyond token 512. */
    BITS_PER_BYTE_FAR("bpb far", false, MethodResult::texts, TextScore::farBits, TextScore::farBytes),
    /** Mean correct prefix over all tasks. */
    PREFIX("correct prefix", true, MethodResult::tasks, score -> (double) score.prefix() / score.tokens(), score -> 1),
    /** Exact match over all tasks. */
    EXACT("exact match", true, MethodResult::tasks, score -> score.exact() ? 1 : 0, score -> 1);

    private final String title;
    private final boolean moreIsBetter;
    private final Function<MethodResult, double[][]> terms;

    <T> Metric(
        String title,
        boolean moreIsBetter,
        Function<MethodResult, List<T>> scores,
        ToDoubleFunction<T> above,
        ToDoubleFunction<T> below) {
      this.title = title;
      this.moreIsBetter = moreIsBetter;
      this.terms =
          result ->
              new double[][] {
                scores.apply(result).stream().mapToDouble(above).toArray(),
                scores.apply(result).stream().mapToDouble(below).toArray()
              };
    }

    /** Its name in tables. */
    public String title() {
      return title;
    }

    /** Its value for a method. */
    public Figure of(MethodResult result) {
      return Figure.ratio(terms.apply(result)[0], terms.apply(result)[1]);
    }

    /**
     * How much better {@code first} is than {@code second} made worse by a factor, over the samples that both have:
     * what makes a sample hard for all methods is in both and cancels.
     */
    Figure gain(MethodResult first, MethodResult second, double factor) {
      double[][] mine = terms.apply(first);
      double[][] other = terms.apply(second);
      int shared = Math.min(mine[0].length, other[0].length);
      double[] difference = new double[shared];
      for (int i = 0; i < shared; i++) {
        difference[i] = moreIsBetter ? mine[0][i] - other[0][i] / factor : factor * other[0][i] - mine[0][i];
      }
      return Figure.ratio(difference, Arrays.copyOf(mine[1], shared));
    }
  }

  /** What came of it. */
  public enum Verdict {
    /** The deciding metric says so, with 95 % confidence in the difference sample by sample. */
    CONFIRMED("confirmed"),
    /** The deciding metric says the contrary, or too little. */
    NOT_CONFIRMED("not confirmed"),
    /** One of the methods did not take part, or there was one sample only. */
    NOT_MEASURED("not measured");

    private final String text;

    Verdict(String text) {
      this.text = text;
    }

    @Override
    public String toString() {
      return text;
    }
  }

  /** What came of it, with the figures: "2.50 bits against 2.25", "KL 0.0123 ± 0.0004 against 0.0456 ± 0.0010". */
  public record Answer(Claim claim, Verdict verdict, List<String> figures) {}

  /** Judges by what an evaluation has found. */
  public Answer judge(Outcome outcome) {
    Optional<MethodResult> first = outcome.find(better);
    Optional<MethodResult> second = outcome.find(worse);
    Metric deciding = metrics.get(0);
    if (first.isEmpty()
        || second.isEmpty()
        || !deciding.of(first.get()).present()
        || !deciding.of(second.get()).present()) {
      return new Answer(this, Verdict.NOT_MEASURED, List.of());
    }
    List<String> figures = new ArrayList<>();
    figures.add(String.format(Locale.ROOT, "%.2f bits against %.2f", first.get().bits(), second.get().bits()));
    for (Metric metric : metrics) {
      Figure mine = metric.of(first.get());
      Figure other = metric.of(second.get());
      if (mine.present() && other.present()) {
        figures.add(metric.title() + " " + text(mine) + " against " + text(other));
      }
    }
    Figure gain = deciding.gain(first.get(), second.get(), factor);
    if (gain.samples() < 2) {
      return new Answer(this, Verdict.NOT_MEASURED, List.of("a single sample has no spread"));
    }
    double doubt = student(gain.samples() - 1) * gain.error();
    return new Answer(this, gain.value() > doubt ? Verdict.CONFIRMED : Verdict.NOT_CONFIRMED, figures);
  }

  /** Standard errors that hold 95 % of Student's distribution with so many degrees of freedom. */
  static double student(int freedom) {
    double[] known = {12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228};
    return freedom <= known.length ? known[freedom - 1] : 1.96 + 2.72 / freedom;
  }

  private static String text(Figure figure) {
    String value = String.format(Locale.ROOT, "%.4g", figure.value());
    return Double.isNaN(figure.error())
        ? value
        : value + String.format(Locale.ROOT, " ± %.2g", figure.error());
  }
}
