package dev.kvasir.lab.evaluate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.lab.evaluate.Claim.Metric;
import dev.kvasir.lab.evaluate.Claim.Verdict;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.Test;

class ClaimTest {

  private static MethodResult result(String name, double... divergences) {
    MethodResult result = new MethodResult(new MethodEntry(name, "family", "about", request -> null));
    for (double divergence : divergences) {
      result.add(new TextScore("text", 100, 100, 100, 50, 50, 100 * divergence, 90, 100));
    }
    return result;
  }

  private static Verdict judge(double factor, MethodResult... results) {
    Outcome outcome = new Outcome("m", "", PromptMode.STREAM, "scalar", 1, true, 1, List.of(results));
    Claim claim = new Claim("a is better than b", "a", "b", List.of(Metric.DIVERGENCE, Metric.EXACT), factor);
    return claim.judge(outcome).verdict();
  }

  @Test
  void verdicts() {
    // Windows differ a lot from each other, but a gains in all of them alike.
    MethodResult b = result("b", 0.10, 0.50, 0.90);
    assertEquals(Verdict.CONFIRMED, judge(1, result("a", 0.05, 0.44, 0.85), b));
    assertEquals(Verdict.NOT_CONFIRMED, judge(1, b, result("a", 0.2, 0.6, 1.0)));
    // Better on average, but for one window alone.
    assertEquals(Verdict.NOT_CONFIRMED, judge(1, result("a", 0.12, 0.52, 0.7), b));
    assertEquals(Verdict.NOT_MEASURED, judge(1, b));
    assertEquals(Verdict.NOT_MEASURED, judge(1, b, result("a")));
    assertEquals(Verdict.CONFIRMED, judge(2, result("a", 0.12, 0.9, 1.7), b));
    assertEquals(Verdict.NOT_CONFIRMED, judge(2, result("a", 0.25, 1.2, 2), b));
    assertEquals(Verdict.NOT_MEASURED, judge(1, result("a", 0.1), result("b", 0.2)));
  }

  @Test
  void doubtShrinksWithSamples() {
    // From tables of Student's distribution, two-sided 95 %.
    assertEquals(12.706, Claim.student(1), 0.01);
    assertEquals(2.228, Claim.student(10), 0.01);
    assertEquals(2.086, Claim.student(20), 0.015);
    assertEquals(2.000, Claim.student(60), 0.015);
    assertEquals(1.960, Claim.student(100000), 0.001);
  }

  @Test
  void figuresAreShown() {
    MethodResult a = result("a", 0.1, 0.3);
    MethodResult b = result("b", 0.2, 0.4);
    a.add(new TaskScore("t", 4, 4, 4));
    b.add(new TaskScore("t", 4, 3, 0));
    Outcome outcome = new Outcome("m", "", PromptMode.STREAM, "scalar", 1, true, 1, List.of(a, b));
    Claim claim = new Claim("text", "a", "b", List.of(Metric.DIVERGENCE, Metric.PREFIX, Metric.EXACT), 1);
    List<String> figures = claim.judge(outcome).figures();
    assertEquals("KL 0.2000 ± 0.10 against 0.3000 ± 0.10", figures.get(1));
    assertEquals("correct prefix 1.000 against 0.000", figures.get(2));
    assertEquals(4, figures.size());
  }

  @Test
  void claimsOfMethodsThatExistNameThemRightly() {
    Set<String> names = new HashSet<>();
    Methods.ALL.forEach(method -> assertTrue(names.add(method.name()), "twice: " + method.name()));
    long judged = Claims.ALL.stream().filter(c -> names.contains(c.better()) && names.contains(c.worse())).count();
    assertTrue(judged >= 8);
  }
}
