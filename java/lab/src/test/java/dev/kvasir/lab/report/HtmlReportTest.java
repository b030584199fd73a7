package dev.kvasir.lab.report;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.lab.sample.Sample;
import dev.kvasir.lab.sample.SampleSets;
import dev.kvasir.runner.TinyModel;
import dev.kvasir.lab.evaluate.Calibrations;
import dev.kvasir.lab.evaluate.Evaluation;
import dev.kvasir.lab.evaluate.Methods;
import dev.kvasir.lab.evaluate.Outcome;
import dev.kvasir.lab.evaluate.PromptMode;
import dev.kvasir.runner.Model;
import java.io.ByteArrayInputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.xml.parsers.DocumentBuilderFactory;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class HtmlReportTest {

  private static final Transcript TRANSCRIPT =
      new Transcript(
          "It read.",
          600,
          List.of("open x: "),
          List.of("12345"),
          "steps before an error",
          true,
          List.of("a:b+c 1+2 a=3", "d:a+a 3+3 d=6"),
          List.of(
              new Transcript.Column(
                  "f16", 16, 4096, 1.5, List.of("12345"), List.of("a:b+c 1+2 a=3", "d:a+a 3+3 d=6")),
              new Transcript.Column("rough", 2, 512, 1.7, List.of("1<345"), List.of("a:b+c 1+2 a=3", "???"))));

  private static final Origin ORIGIN = new Origin("1.2.3", LocalDate.of(2026, 11, 16), "kvasir evaluate a<b");

  @TempDir Path folder;

  private Outcome outcome(boolean stopped) throws Exception {
    TinyModel.qwen2(folder, 3);
    Model model = Model.load(folder);
    Map<String, List<Sample>> sets = new LinkedHashMap<>();
    byte[] text = new byte[600];
    new Random(1).nextBytes(text);
    sets.put("noise", List.of(SampleSets.text("noise", text, model.tokenizer())));
    sets.put("a<b>&\"c\"", List.of(SampleSets.task("a<b>&\"c\"", "question ".repeat(30), "answer", model.tokenizer())));
    byte[] tuning = new byte[1024];
    new Random(2).nextBytes(tuning);
    TinyModel.writeGradients(folder.resolve("calib.safetensors"));
    Path tuningText = Files.write(folder.resolve("noise_val.bin"), tuning);
    Calibrations calibrations = new Calibrations(model, List.of(tuningText)).from(folder);
    Evaluation.Listener deaf = Evaluation.Listener.NONE;
    return new Evaluation("tiny & co", model, sets, Methods.ALL, PromptMode.STREAM, calibrations, deaf)
        .run(() -> stopped);
  }

  @Test
  void thePageStandsAlone() throws Exception {
    Outcome outcome = outcome(false);
    outcome.results().forEach(result -> assertNull(result.failure(), result.method().name()));
    String page = HtmlReport.of(outcome, TRANSCRIPT, ORIGIN);
    assertFalse(page.matches("(?s).*(src=|href=|url\\(|@import|<script).*"), "needs something from elsewhere");
    assertFalse(page.contains("NaN") || page.contains("Infinity"), "a figure without a value");
    assertFalse(page.contains("<b>&"), "text that was not escaped");
    assertTrue(page.contains("Kvasir 1.2.3 · 2026-11-16 · <code>kvasir evaluate a&lt;b</code>"));
    assertTrue(page.contains("@media (max-width: 640px)"));
    assertTrue(page.contains("tiny &amp; co") && page.contains("a&lt;b&gt;&amp;&quot;c&quot;"));
    Methods.ALL.forEach(method -> assertTrue(page.contains(">" + method.name() + "<"), method.name()));
    for (String heading : List.of("Quality against bits", "All methods", "What the papers say", "Memory against tokens",
        "Error by layer and head", "Widths of keys", "Use of patterns", "One model, one text, many caches")) {
      assertTrue(page.contains(heading), heading);
    }
    List<String> drawings = drawings(page);
    // Two fronts, memory, the key, a heat map for each method but the reference, and the users of patterns and of tiers.
    assertTrue(drawings.size() >= 4 + Methods.ALL.size() - 1 + 5 + 4, drawings.size() + " drawings");
    assertTrue(page.contains("<td class=\"right\">12345</td><td class=\"wrong\">1&lt;345</td>"));
    assertTrue(page.contains("<td>1 of 1</td><td>0 of 1</td>") && page.contains("<td>2 of 2</td><td>1 of 2</td>"));
    for (String drawing : drawings) {
      DocumentBuilderFactory.newInstance()
          .newDocumentBuilder()
          .parse(new ByteArrayInputStream(drawing.getBytes(StandardCharsets.UTF_8)));
    }
  }

  @Test
  void aPageOfNothingIsAPageAllTheSame() throws Exception {
    String page = HtmlReport.of(outcome(true), null, ORIGIN);
    assertTrue(page.contains("Stopped early") && page.contains("nothing measured") && page.endsWith("</html>\n"));
    assertFalse(page.contains("NaN"));
  }

  @Test
  void ticksAreRoundNumbers() {
    assertEquals(List.of(0.0, 20.0, 40.0, 60.0, 80.0, 100.0), Scale.linear(0, 100, 0, 1).ticks());
    assertEquals(List.of(1.0, 2.0, 5.0, 10.0), Scale.logarithmic(1, 16, 0, 1).ticks());
    assertEquals(4, Scale.logarithmic(1e-4, 0.5, 0, 1).ticks().size());
    assertEquals(30, Scale.logarithmic(1, 100, 10, 50).at(10), 1e-9);
    assertEquals(50, Scale.linear(0, 1, 10, 50).at(7), 1e-9);
    assertEquals("0.25", Scale.text(0.25));
    assertEquals("1e-4", Scale.text(1e-4));
    assertEquals("16", Scale.text(16));
  }

  private static List<String> drawings(String page) {
    List<String> found = new ArrayList<>();
    Matcher matcher = Pattern.compile("<svg.*?</svg>", Pattern.DOTALL).matcher(page);
    while (matcher.find()) {
      found.add(matcher.group());
    }
    return found;
  }
}
