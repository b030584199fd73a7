package dev.kvasir.lab.report;

import static dev.kvasir.lab.report.Svg.escape;
import static dev.kvasir.lab.report.Svg.format;

import dev.kvasir.lab.evaluate.Claim;
import dev.kvasir.lab.evaluate.Claims;
import dev.kvasir.lab.evaluate.Figure;
import dev.kvasir.lab.evaluate.Lengths;
import dev.kvasir.lab.evaluate.MethodResult;
import dev.kvasir.lab.evaluate.Outcome;
import dev.kvasir.lab.evaluate.PromptMode;
import dev.kvasir.lab.evaluate.TextScore;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/** An outcome as one HTML page that needs nothing else: style and pictures are inside. */
final class HtmlReport {

  /** One colour a family, in the order of their first appearance; the 16-bit reference is grey. */
  private static final List<String> COLOURS =
      List.of("#7a8290", "#2f6fde", "#e0701f", "#e9b07f", "#1f9d6b", "#8d4fd0", "#d63d6b", "#0fa3b1", "#a08b2a");

  private final Outcome outcome;
  private final Map<String, String> families = new LinkedHashMap<>();
  private final StringBuilder out = new StringBuilder();

  private HtmlReport(Outcome outcome) {
    this.outcome = outcome;
    for (MethodResult result : outcome.results()) {
      families.computeIfAbsent(
          result.method().family(), family -> COLOURS.get(families.size() % COLOURS.size()));
    }
  }

  static String of(Outcome outcome, @Nullable Transcript transcript, Origin origin) {
    HtmlReport report = new HtmlReport(outcome);
    report.head();
    report.cards();
    if (transcript != null) {
      report.transcript(transcript);
    }
    report.fronts();
    report.table();
    report.grades();
    report.claims();
    report.memory();
    report.heatMaps();
    report.tiers();
    report.patterns();
    report.notes();
    return report.out.append(origin.html()).append("</main></body></html>\n").toString();
  }

  private void head() {
    out.append(opening("Kvasir: " + outcome.model())).append("<header><p class=\"brand\">Kvasir</p>");
    out.append("<h1>What a compressed cache costs ").append(escape(outcome.model())).append("</h1><p class=\"lead\">");
    out.append(escape(outcome.about())).append(". ");
    out.append(format("%d methods, ", outcome.results().size()));
    out.append(escape(outcome.backend()));
    out.append(format(" on %d threads, %.0f s", outcome.threads(), outcome.seconds()));
    out.append(outcome.complete() ? "." : ". <strong>Stopped early: figures are of the samples run so far.</strong>");
    out.append("</p></header>");
  }

  /** A page up to where its content begins. */
  static String opening(String title) {
    return "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">"
        + "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>"
        + escape(title) + "</title><style>" + style() + "</style></head><body><main>";
  }

  private static String style() {
    try (InputStream in = HtmlReport.class.getResourceAsStream("report.css")) {
      if (in == null) {
        throw new IllegalStateException("report.css is not on the class path");
      }
      return new String(in.readAllBytes(), StandardCharsets.UTF_8);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  /** The questions that users come with, answered by the figures. */
  private void cards() {
    MethodResult reference = outcome.results().get(0);
    out.append("<section class=\"cards\">");
    Figure text = reference.bitsPerByte();
    smallest(r -> r.bitsPerByte().present() && r.bitsPerByte().value() <= 1.01 * text.value())
        .ifPresent(r -> card("smallest within 1 % of the 16-bit text score", r,
            format("%+.2f %% bits per byte", 100 * (r.bitsPerByte().value() / text.value() - 1))));
    double exact = exact(reference);
    smallest(r -> exact(r) >= 0.95 * exact)
        .ifPresent(r -> card("smallest with 95 % of the 16-bit answers right", r,
            format("%.1f %% exact, 16 bit %.1f %%", 100 * exact(r), 100 * exact)));
    outcome.results().stream()
        .filter(r -> r != reference && r.bits() <= 3 && r.divergence().present())
        .min(Comparator.comparingDouble(r -> r.divergence().value()))
        .ifPresent(r -> card("closest to 16 bit at 3 bits or less", r, format("KL %.4f", r.divergence().value())));
    outcome.results().stream()
        .filter(r -> r.attentionMicros().present())
        .min(Comparator.comparingDouble(r -> r.attentionMicros().value()))
        .ifPresent(r -> card("fastest attention", r, format("%.1f times the speed of 16 bit",
            reference.attentionMicros().value() / r.attentionMicros().value())));
    out.append("</section>");
  }

  private Optional<MethodResult> smallest(java.util.function.Predicate<MethodResult> good) {
    return outcome.results().stream()
        .filter(r -> !Double.isNaN(r.bits()) && good.test(r))
        .min(Comparator.comparingDouble(MethodResult::bits));
  }

  /** Exact match over all tasks; NaN where there are none. */
  private static double exact(MethodResult result) {
    return Claim.Metric.EXACT.of(result).value();
  }

  private void card(String title, MethodResult result, String figure) {
    out.append("<div class=\"card\"><p>").append(escape(title)).append("</p><b>");
    out.append(escape(result.method().name())).append("</b><span>");
    out.append(format("%.2f bits · ", result.bits())).append(escape(figure)).append("</span></div>");
  }

  /** What the model said with each cache: columns are methods, and what is wrong stands out. */
  private void transcript(Transcript said) {
    out.append("<section><h2>One model, one text, many caches</h2><p>").append(escape(said.about()));
    out.append(" The same weights, the same words; only the cache differs.</p>");
    out.append("<div class=\"scroll\"><table class=\"said\"><thead><tr><th></th>");
    said.columns().forEach(column -> out.append("<th>").append(escape(column.method())).append("</th>"));
    out.append("</tr></thead><tbody>");
    totals("bits per element", said, column -> format("%.2f", column.bits()));
    totals("cache, KiB", said, column -> format("%.0f", column.bytes() / 1024));
    totals("questions answered", said, column -> said.right(column) + " of " + said.answers().size());
    totals(said.stepsRight(), said, column -> said.rightSteps(column) + " of " + said.steps().size());
    for (int i = 0; i < said.questions().size(); i++) {
      int index = i;
      words(said.questions().get(i), said, said.answers().get(i), column -> column.answers().get(index), text -> text);
    }
    for (int i = 0; i < said.steps().size(); i++) {
      int index = i;
      words(said.steps().get(i), said, said.steps().get(i), column -> column.steps().get(index),
          text -> text.substring(text.lastIndexOf(' ') + 1));
    }
    out.append("</tbody></table></div></section>");
  }

  private void totals(String title, Transcript said, Function<Transcript.Column, String> cell) {
    out.append("<tr class=\"total\"><th>").append(escape(title)).append("</th>");
    said.columns().forEach(column -> out.append("<td>").append(escape(cell.apply(column))).append("</td>"));
    out.append("</tr>");
  }

  private void words(
      String title,
      Transcript said,
      String right,
      Function<Transcript.Column, String> words,
      Function<String, String> brief) {
    out.append("<tr><th>").append(escape(title)).append("</th>");
    for (Transcript.Column column : said.columns()) {
      String text = words.apply(column);
      String shown = brief.apply(text);
      out.append(text.equals(right) ? "<td class=\"right\">" : "<td class=\"wrong\">");
      out.append(escape(shown.length() > 9 ? shown.substring(0, 8) + "…" : shown)).append("</td>");
    }
    out.append("</tr>");
  }

  private void fronts() {
    List<Charts.Point> divergence = new ArrayList<>();
    List<Charts.Point> prefix = new ArrayList<>();
    for (MethodResult result : outcome.results()) {
      Figure kl = result.divergence();
      if (!Double.isNaN(result.bits()) && kl.present() && kl.value() > 0) {
        divergence.add(point(result, kl));
      }
      Figure right = Claim.Metric.PREFIX.of(result);
      if (!Double.isNaN(result.bits()) && right.present()) {
        prefix.add(point(result, new Figure(100 * right.value(), 100 * right.error(), right.samples())));
      }
    }
    out.append("<section><h2>Quality against bits</h2>");
    out.append("<p>Text: how far predictions move from those with a 16-bit cache. Tasks: how much of an ");
    out.append("answer is right before its first error, over all tasks. Lines join what no other method beats; ");
    out.append("bars are one standard error.</p>");
    legend();
    out.append("<div class=\"pair\"><figure>");
    out.append(Charts.front("divergence", "KL divergence, nats a token", divergence, true, Charts.Good.DOWN));
    out.append("</figure><figure>");
    out.append(Charts.front("tasks", "correct prefix of answers, %", prefix, false, Charts.Good.UP));
    out.append("</figure></div></section>");
  }

  private Charts.Point point(MethodResult result, Figure figure) {
    double error = Double.isNaN(figure.error()) ? 0 : figure.error();
    return new Charts.Point(result.method().name(), colour(result), result.bits(), figure.value(), error);
  }

  private String colour(MethodResult result) {
    return families.getOrDefault(result.method().family(), COLOURS.get(0));
  }

  private void legend() {
    out.append("<p class=\"legend\">");
    families.forEach((family, colour) -> {
      out.append("<span><i style=\"background:").append(colour).append("\"></i>").append(escape(family));
      out.append("</span>");
    });
    out.append("</p>");
  }

  private void table() {
    out.append("<section><h2>All methods</h2><div class=\"scroll\"><table><thead><tr><th>method</th><th>bits</th>");
    Lengths.TOKENS.forEach(tokens -> out.append("<th>at ").append(tokens / 1024).append("K</th>"));
    out.append("<th>+ codebooks</th><th>perplexity</th><th>bits/byte</th><th>KL</th><th>top-1</th>");
    outcome.tasks().forEach(task -> out.append("<th>").append(escape(task)).append("</th>"));
    out.append("<th>KiB a sequence</th><th>µs/token</th><th>of it attention</th></tr></thead><tbody>");
    for (MethodResult result : outcome.results()) {
      out.append("<tr><th title=\"").append(escape(result.method().about())).append("\"><i style=\"background:");
      out.append(colour(result)).append("\"></i>").append(escape(result.method().name())).append("</th>");
      if (result.failure() != null) {
        out.append("<td class=\"failed\" colspan=\"").append(9 + Lengths.TOKENS.size() + outcome.tasks().size()).append("\">");
        out.append(escape(result.failure())).append("</td></tr>");
        continue;
      }
      cell(new Figure(result.bits(), Double.NaN, 1), "%.2f", 1);
      for (int i = 0; i < Lengths.TOKENS.size(); i++) {
        cell(new Figure(result.bitsAtLength(i), Double.NaN, 1), "%.2f", 1);
      }
      cell(new Figure(result.codebookBits() > 0 ? result.codebookBits() : Double.NaN, Double.NaN, 1), "%.2f", 1);
      cell(new Figure(result.perplexity(), Double.NaN, 1), "%.2f", 1);
      cell(result.bitsPerByte(), "%.4f", 1);
      cell(result.divergence(), "%.5f", 1);
      cell(result.agreement(), "%.1f %%", 100);
      for (String task : outcome.tasks()) {
        share(result.exact(task));
      }
      cell(new Figure(result.cacheBytes(), Double.NaN, 1), "%.0f", 1.0 / 1024);
      cell(result.microsPerToken(), "%.0f", 1);
      cell(result.attentionMicros(), "%.0f", 1);
      out.append("</tr>");
    }
    out.append("</tbody></table></div><p class=\"note\">Tasks: exact match of greedy answers. Small: one standard ");
    out.append("error over samples. Bits and memory of a sequence of ");
    out.append(outcome.results().get(0).cacheTokens()).append(" tokens, and beside it of longer ones, where windows and sinks weigh less: all counted but codebooks, which sequences share, so that ");
    out.append("another column has what they would add were there this one sequence only. ");
    out.append("Time of one decoding step of one such sequence, matrix products included.</p></section>");
  }

  /** Tasks once more, by the measures that still tell something where exact match is on the floor. */
  private void grades() {
    if (outcome.tasks().isEmpty()) {
      return;
    }
    out.append("<section><h2>Tasks, graded</h2><p>Exact match is unforgiving: one wrong token of a thousand fails an ");
    out.append("answer. Token accuracy counts right tokens given the right beginning; the correct prefix is the ");
    out.append("share of an answer before its first error.</p><div class=\"scroll\"><table><thead><tr><th>method</th>");
    for (String task : outcome.tasks()) {
      out.append("<th>").append(escape(task)).append(": exact</th><th>token accuracy</th><th>correct prefix</th>");
    }
    out.append("</tr></thead><tbody>");
    for (MethodResult result : outcome.results()) {
      out.append("<tr><th><i style=\"background:").append(colour(result)).append("\"></i>");
      out.append(escape(result.method().name())).append("</th>");
      for (String task : outcome.tasks()) {
        share(result.exact(task));
        cell(result.tokenAccuracy(task), "%.2f %%", 100);
        share(result.correctPrefix(task));
      }
      out.append("</tr>");
    }
    out.append("</tbody></table></div></section>");
  }

  private void cell(Figure figure, String format, double unit) {
    out.append("<td>").append(Double.isNaN(figure.value()) ? "–" : format(format, unit * figure.value()));
    if (figure.present() && !Double.isNaN(figure.error()) && figure.error() > 0) {
      out.append("<small>± ").append(format(format, unit * figure.error()).replace(" %", "")).append("</small>");
    }
    out.append("</td>");
  }

  /** A share with a bar behind it. */
  private void share(Figure figure) {
    if (!figure.present()) {
      out.append("<td>–</td>");
      return;
    }
    double percent = 100 * figure.value();
    out.append(format("<td class=\"share\" style=\"--share:%.1f%%\">%.1f %%", percent, percent));
    if (!Double.isNaN(figure.error()) && figure.error() > 0) {
      out.append(format("<small>± %.1f</small>", 100 * figure.error()));
    }
    out.append("</td>");
  }

  private void claims() {
    out.append("<section><h2>What the papers say, asked of this model</h2><p>KL divergence from the 16-bit cache ");
    out.append("decides, with 95 % confidence in the difference window by window; the other figures stand beside it.");
    out.append("</p><div class=\"scroll\"><table class=\"claims\"><tbody>");
    for (Claim claim : Claims.ALL) {
      Claim.Answer answer = claim.judge(outcome);
      out.append("<tr><td><span class=\"badge ").append(answer.verdict().name().toLowerCase(java.util.Locale.ROOT));
      out.append("\">").append(answer.verdict()).append("</span></td><td>").append(escape(claim.text()));
      out.append("<small>");
      out.append(
          answer.figures().isEmpty()
              ? escape(claim.better() + " or " + claim.worse() + " did not take part")
              : String.join(" · ", answer.figures().stream().map(Svg::escape).toList()));
      out.append("</small></td></tr>");
    }
    out.append("</tbody></table></div></section>");
  }

  private void memory() {
    List<Charts.Series> all = new ArrayList<>();
    // Variants of a method often take the very same memory: one line and one name for them.
    Map<List<MethodResult.Memory>, List<MethodResult>> alike = new LinkedHashMap<>();
    outcome.results().forEach(r -> alike.computeIfAbsent(r.memory(), key -> new ArrayList<>()).add(r));
    for (List<MethodResult> group : alike.values()) {
      MethodResult result = group.get(0);
      String name = result.method().name() + (group.size() == 1 ? "" : " and " + (group.size() - 1) + " more");
      double[] points =
          result.memory().stream()
              .flatMapToDouble(at -> java.util.stream.DoubleStream.of(at.tokens(), at.bytes() / 1024))
              .toArray();
      if (points.length >= 4) {
        all.add(new Charts.Series(name, colour(result), points));
      }
    }
    if (all.isEmpty()) {
      return;
    }
    out.append("<section><h2>Memory against tokens</h2><p>What one sequence takes as it grows, everything counted. ");
    out.append("The newest tokens wait in 16 bits until 128 of them become a page.</p><figure class=\"wide\">");
    out.append(Charts.lines("memory", "tokens", "KiB", all)).append("</figure></section>");
  }

  private void heatMaps() {
    double low = Double.MAX_VALUE;
    double high = 0;
    for (MethodResult result : outcome.results()) {
      for (double[] layer : result.headErrors()) {
        for (double error : layer) {
          low = error > 0 ? Math.min(low, error) : low;
          high = Math.max(high, error);
        }
      }
    }
    if (high == 0) {
      return;
    }
    low = Math.max(low, high / 1000);
    out.append("<section><h2>Error by layer and head</h2><p>Attention outputs on the very same keys, values and ");
    out.append("queries of a text: length of the difference from 16 bits, relative. Layers downwards, query heads ");
    out.append("across.</p>");
    out.append("<figure class=\"key\">").append(Charts.heatKey(low, high)).append("</figure><div class=\"grid\">");
    for (MethodResult result : outcome.results()) {
      if (result.headErrors().length > 0) {
        out.append("<figure>").append(Charts.heat(result.method().name(), result.headErrors(), low, high));
        out.append("</figure>");
      }
    }
    out.append("</div></section>");
  }

  /** How the widths of key channels are spread, for methods that have several. */
  private void tiers() {
    List<MethodResult> users = outcome.results().stream().filter(result -> !result.tiers().isEmpty()).toList();
    if (users.isEmpty()) {
      return;
    }
    out.append("<section><h2>Widths of keys</h2><p>Share of key channels that are stored in ");
    Charts.TIERS.forEach((bits, colour) -> {
      out.append("<i class=\"dot\" style=\"background:").append(colour).append("\"></i> ").append(bits).append(", ");
    });
    out.setLength(out.length() - 2);
    out.append(" bits, by layer, over all packed pages at the end of a text.</p><div class=\"grid bars\">");
    for (MethodResult result : users) {
      out.append("<figure>").append(Charts.stacks(result.method().name(), result.tiers())).append("</figure>");
    }
    out.append("</div></section>");
  }

  private void patterns() {
    List<MethodResult> users =
        outcome.results().stream()
            .filter(result -> result.tableUse().stream().anyMatch(use -> use.keys() + use.values() > 0))
            .toList();
    if (users.isEmpty()) {
      return;
    }
    out.append("<section><h2>Use of patterns</h2><p>Share of keys ");
    out.append("(<i class=\"dot\" style=\"background:#2f6fde\"></i>) and values ");
    out.append("(<i class=\"dot\" style=\"background:#e0701f\"></i>) in packed pages that are stored as the ");
    out.append("difference from a pattern, by layer.</p><div class=\"grid bars\">");
    for (MethodResult result : users) {
      double[] keys = result.tableUse().stream().mapToDouble(MethodResult.TableUse::keys).toArray();
      double[] values = result.tableUse().stream().mapToDouble(MethodResult.TableUse::values).toArray();
      out.append("<figure>").append(Charts.pairs(result.method().name(), keys, values, "#2f6fde", "#e0701f"));
      out.append("</figure>");
    }
    out.append("</div></section>");
  }

  private void notes() {
    MethodResult reference = outcome.results().get(0);
    out.append("<section class=\"notes\"><h2>How this was measured</h2><ul>");
    out.append(format("<li>Windows of held-out text: %d, with %.0f predictions;", reference.texts().size(),
        reference.texts().stream().mapToDouble(TextScore::tokens).sum()));
    out.append(format(" instances of tasks: %d. Every method ran the same ones.</li>", reference.tasks().size()));
    out.append("<li>Every token saw what the compressed cache held at its time, as in token-by-token decoding");
    out.append(
        outcome.prompt() == PromptMode.EXACT
            ? "; prompts, and what comes before the scored end of a text, attended in 16 bits and were compressed in one piece.</li>"
            : ", prompts included.</li>");
    out.append("<li>KL is in nats a token, from the predictions of the 16-bit cache; top-1 is how often both ");
    out.append("agree on the likeliest token.</li></ul></section>");
  }
}
