package dev.kvasir.lab.evaluate;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.kvasir.lab.sample.Sample;
import dev.kvasir.runner.text.Tokenizer;
import java.util.List;
import java.util.OptionalInt;
import org.junit.jupiter.api.Test;

class ScorerTest {

  /** Four tokens; token 3 stands for two bytes. */
  private static final Tokenizer TOKENS =
      new Tokenizer() {
        @Override
        public OptionalInt special(String name) {
          return OptionalInt.empty();
        }

        @Override
        public int[] encode(byte[] text) {
          throw new UnsupportedOperationException();
        }

        @Override
        public byte[] decode(int... tokens) {
          return new byte[tokens[0] == 3 ? 2 : 1];
        }

        @Override
        public int[] prefix() {
          return new int[0];
        }
      };

  private static float[] logits(double... probabilities) {
    float[] logits = new float[probabilities.length];
    for (int i = 0; i < logits.length; i++) {
      // Any constant added to all logits leaves the probabilities as they are.
      logits[i] = (float) (Math.log(probabilities[i]) + 5);
    }
    return logits;
  }

  @Test
  void textsAreScoredInBitsPerByteAndAgainstTheReference() {
    Sample sample = new Sample("text", false, new int[] {0, 3, 1}, 0);
    Scorer reference = new Scorer(List.of(sample), TOKENS, 4, null);
    reference.accept(0, 0, logits(0.5, 0.125, 0.125, 0.25));
    reference.accept(0, 1, logits(0.1, 0.2, 0.3, 0.4));
    Scorer other = new Scorer(List.of(sample), TOKENS, 4, reference);
    other.accept(0, 0, logits(0.25, 0.25, 0.375, 0.125));
    other.accept(0, 1, logits(0.1, 0.2, 0.3, 0.4));
    MethodResult first = new MethodResult(Methods.REFERENCE);
    MethodResult second = new MethodResult(Methods.REFERENCE);
    reference.deliver(first);
    other.deliver(second);
    // Token 3 costs 2 bits for two bytes, then token 1 log2 5 bits for one.
    assertEquals((2 + Math.log(5) / Math.log(2)) / 3, first.bitsPerByte().value(), 1e-6);
    assertEquals((3 + Math.log(5) / Math.log(2)) / 3, second.bitsPerByte().value(), 1e-6);
    assertEquals(0, first.divergence().value());
    assertEquals(1, first.agreement().value());
    double divergence =
        0.5 * Math.log(2) + 0.125 * Math.log(0.5) + 0.125 * Math.log(1 / 3.0) + 0.25 * Math.log(2);
    assertEquals(divergence / 2, second.divergence().value(), 1e-6);
    assertEquals(0.5, second.agreement().value());
    assertEquals(false, second.bitsPerByteFar().present());
  }

  @Test
  void farTokensAreThoseBeyond512() {
    int[] tokens = new int[600];
    Scorer scorer = new Scorer(List.of(new Sample("text", false, tokens, 0)), TOKENS, 4, null);
    for (int i = 0; i < 599; i++) {
      scorer.accept(0, i, i + 1 < 512 ? logits(0.5, 0.25, 0.125, 0.125) : logits(0.25, 0.5, 0.125, 0.125));
    }
    MethodResult result = new MethodResult(Methods.REFERENCE);
    scorer.deliver(result);
    assertEquals(2, result.bitsPerByteFar().value(), 1e-6);
    assertEquals((511 + 2 * 88) / 599.0, result.bitsPerByte().value(), 1e-6);
  }

  /** Tokens that only fill the cache are not kept, so their number says nothing about how many predictions can be. */
  @Test
  void allScoredTokensAreComparedAfterLongPrompts() {
    int vocabulary = 1 << 17;
    Sample sample = new Sample("text", false, new int[1000], 995);
    Scorer reference = new Scorer(List.of(sample), TOKENS, vocabulary, null);
    Scorer other = new Scorer(List.of(sample), TOKENS, vocabulary, reference);
    for (int i = 995; i < 999; i++) {
      reference.accept(0, i, new float[vocabulary]);
      other.accept(0, i, new float[vocabulary]);
    }
    assertEquals(4, comparedBy(other));
    assertEquals(0, other.divergence(), 1e-6);
  }

  @Test
  void ofManyScoredTokensTheFirstIsCompared() {
    int vocabulary = 1 << 17;
    Sample sample = new Sample("text", false, new int[2000], 333);
    Scorer reference = new Scorer(List.of(sample), TOKENS, vocabulary, null);
    Scorer other = new Scorer(List.of(sample), TOKENS, vocabulary, reference);
    for (Scorer scorer : List.of(reference, other)) {
      scorer.accept(0, 333, new float[vocabulary]);
      scorer.accept(0, 334, new float[vocabulary]);
    }
    assertEquals(1, comparedBy(other));
  }

  private static double comparedBy(Scorer scorer) {
    MethodResult result = new MethodResult(Methods.REFERENCE);
    scorer.deliver(result);
    return result.texts().get(0).compared();
  }

  @Test
  void tasksAreJudgedTokenByToken() {
    Sample good = new Sample("task", true, new int[] {0, 0, 1, 2}, 1);
    Sample bad = new Sample("task", true, new int[] {0, 1, 1, 1, 1}, 0);
    Scorer scorer = new Scorer(List.of(good, bad), TOKENS, 4, null);
    scorer.accept(0, 1, logits(0.1, 0.7, 0.1, 0.1));
    scorer.accept(0, 2, logits(0.1, 0.1, 0.7, 0.1));
    for (int i = 0; i < 4; i++) {
      // The third of four is wrong.
      scorer.accept(1, i, i == 2 ? logits(0.7, 0.1, 0.1, 0.1) : logits(0.1, 0.7, 0.1, 0.1));
    }
    MethodResult result = new MethodResult(Methods.REFERENCE);
    scorer.deliver(result);
    assertEquals(List.of(new TaskScore("task", 2, 2, 2), new TaskScore("task", 4, 3, 2)), result.tasks());
    assertEquals(0.5, result.exact("task").value());
    assertEquals(5 / 6.0, result.tokenAccuracy("task").value(), 1e-12);
    assertEquals(0.75, result.correctPrefix("task").value(), 1e-12);
    assertEquals(0, Scorer.likeliest(new float[] {1, 1, 0}));
  }
}
