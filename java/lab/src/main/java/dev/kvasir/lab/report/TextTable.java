package dev.kvasir.lab.report;

import dev.kvasir.lab.evaluate.Claim;
import dev.kvasir.lab.evaluate.Claims;
import dev.kvasir.lab.evaluate.Figure;
import dev.kvasir.lab.evaluate.Lengths;
import dev.kvasir.lab.evaluate.MethodResult;
import dev.kvasir.lab.evaluate.Outcome;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/** An outcome for terminals. */
public final class TextTable {

  private TextTable() {}

  /** The table of methods, then the claims that could be judged. */
  public static String of(Outcome outcome) {
    List<String> tasks = new ArrayList<>(outcome.tasks());
    StringBuilder out = new StringBuilder();
    out.append(String.format("%-26s %6s", "method", "bits"));
    Lengths.TOKENS.forEach(tokens -> out.append(String.format(" %6s", tokens / 1024 + "K")));
    out.append(String.format(" %6s %7s %7s %18s %7s", "+books", "ppl", "bpb", "KL", "top-1"));
    for (String task : tasks) {
      out.append(String.format(" %18s", task));
    }
    out.append(String.format(" %9s %8s%n", "KiB/seq", "us/token"));
    for (MethodResult result : outcome.results()) {
      out.append(String.format("%-26s %6s", result.method().name(), number("%.2f", result.bits())));
      for (int i = 0; i < Lengths.TOKENS.size(); i++) {
        out.append(String.format(" %6s", number("%.2f", result.bitsAtLength(i))));
      }
      boolean books = result.codebookBits() > 0;
      out.append(String.format(" %6s", books ? number("%.2f", result.codebookBits()) : "-"));
      out.append(String.format(" %7s", number("%.3f", result.perplexity())));
      out.append(String.format(" %7s", number("%.4f", result.bitsPerByte().value())));
      Figure kl = result.divergence();
      String error = Double.isNaN(kl.error()) ? "" : "±" + number("%.5f", kl.error());
      out.append(String.format(" %9s %8s", number("%.5f", kl.value()), error));
      out.append(String.format(" %7s", percent(result.agreement())));
      for (String task : tasks) {
        String grade = percent(result.correctPrefix(task));
        out.append(String.format(" %9s (%5s )", percent(result.exact(task)), grade));
      }
      out.append(String.format(" %9s", number("%.0f", result.cacheBytes() / 1024)));
      out.append(String.format(" %8s", number("%.0f", result.microsPerToken().value())));
      out.append(result.failure() == null ? "" : "  failed: " + result.failure()).append(String.format("%n"));
    }
    out.append(String.format("bits: at the length run, and at others; ± one standard error over windows%n"));
    out.append(String.format("+books: codebooks, which sequences share, were there one alone; "));
    out.append(String.format("tasks: exact match (mean correct prefix), in %%%n%n"));
    for (Claim claim : Claims.ALL) {
      Claim.Answer answer = claim.judge(outcome);
      if (answer.verdict() != Claim.Verdict.NOT_MEASURED) {
        String figures = String.join("; ", answer.figures());
        out.append(String.format("%-14s %s: %s%n", answer.verdict(), claim.text(), figures));
      }
    }
    return out.toString();
  }

  private static String percent(Figure figure) {
    return number("%.1f", 100 * figure.value());
  }

  private static String number(String format, double value) {
    return Double.isNaN(value) ? "-" : String.format(Locale.ROOT, format, value);
  }
}
