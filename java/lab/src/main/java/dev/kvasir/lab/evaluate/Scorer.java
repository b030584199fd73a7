package dev.kvasir.lab.evaluate;

import dev.kvasir.lab.sample.Sample;
import dev.kvasir.runner.text.Tokenizer;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** Judges the predictions of one method for one batch of samples. */
final class Scorer implements StreamRunner.Sink {

  /** The token beyond which a text counts as far from its beginning. */
  static final int FAR = 512;

  /** Most log-probabilities of the reference that are kept: 256 MiB. */
  private static final long MAX_KEPT = 64L << 20;

  private final List<Sample> samples;
  private final Tokenizer tokenizer;
  private final @Nullable Scorer reference;
  private final float @Nullable [][][] kept;
  private final int stride;

  private final double[][] sums;
  private final boolean[][] right;

  private static final int BITS = 0;
  private static final int BYTES = 1;
  private static final int FAR_BITS = 2;
  private static final int FAR_BYTES = 3;
  private static final int DIVERGENCE = 4;
  private static final int AGREEMENTS = 5;
  private static final int COMPARED = 6;

  /** Without a reference it becomes one: it keeps its predictions for others, of every n-th scored token if all are many. */
  Scorer(List<Sample> samples, Tokenizer tokenizer, int vocabulary, @Nullable Scorer reference) {
    this.samples = samples;
    this.tokenizer = tokenizer;
    this.reference = reference;
    this.sums = new double[samples.size()][COMPARED + 1];
    this.right = new boolean[samples.size()][];
    long all = 0;
    for (int i = 0; i < samples.size(); i++) {
      right[i] = new boolean[samples.get(i).scored()];
      all += samples.get(i).task() ? 0 : (long) samples.get(i).scored() * vocabulary;
    }
    this.stride = reference != null ? reference.stride : (int) (1 + all / MAX_KEPT);
    this.kept = reference != null ? null : new float[samples.size()][][];
    if (kept != null) {
      for (int i = 0; i < kept.length; i++) {
        kept[i] = new float[samples.get(i).task() ? 0 : samples.get(i).scored() / stride + 1][];
      }
    }
  }

  @Override
  public void accept(int index, int position, float[] logits) {
    Sample sample = samples.get(index);
    int target = sample.tokens()[position + 1];
    int likeliest = likeliest(logits);
    right[index][position - sample.scoredFrom()] = likeliest == target;
    if (sample.task()) {
      return;
    }
    double total = 0;
    for (float logit : logits) {
      total += Math.exp(logit - logits[likeliest]);
    }
    double normaliser = logits[likeliest] + Math.log(total);
    double bits = (normaliser - logits[target]) / Math.log(2);
    int bytes = tokenizer.decode(target).length;
    double[] sum = sums[index];
    sum[BITS] += bits;
    sum[BYTES] += bytes;
    if (position + 1 >= FAR) {
      sum[FAR_BITS] += bits;
      sum[FAR_BYTES] += bytes;
    }
    // From the first scored token on, so that every sample has one that is compared.
    int scored = position - sample.scoredFrom();
    if (scored % stride == 0) {
      compare(index, scored / stride, logits, normaliser, likeliest);
    }
  }

  private void compare(int index, int place, float[] logits, double normaliser, int likeliest) {
    double[] sum = sums[index];
    if (kept != null) {
      float[] own = new float[logits.length];
      for (int i = 0; i < own.length; i++) {
        own[i] = (float) (logits[i] - normaliser);
      }
      kept[index][place] = own;
      sum[AGREEMENTS]++;
    } else {
      float[] expected = reference.kept[index][place];
      double divergence = 0;
      for (int i = 0; i < expected.length; i++) {
        divergence += Math.exp(expected[i]) * (expected[i] - (logits[i] - normaliser));
      }
      sum[DIVERGENCE] += divergence;
      sum[AGREEMENTS] += likeliest == likeliest(expected) ? 1 : 0;
    }
    sum[COMPARED]++;
  }

  /** The mean divergence from the reference, in nats a token. */
  double divergence() {
    double divergence = 0;
    double compared = 0;
    for (double[] sum : sums) {
      divergence += sum[DIVERGENCE];
      compared += sum[COMPARED];
    }
    return divergence / compared;
  }

  /** Adds the scores of all samples to a result. */
  void deliver(MethodResult result) {
    for (int i = 0; i < samples.size(); i++) {
      Sample sample = samples.get(i);
      if (sample.task()) {
        result.add(taskScore(sample.set(), right[i]));
      } else {
        double[] s = sums[i];
        result.add(
            new TextScore(
                sample.set(), sample.scored(), s[BITS], s[BYTES], s[FAR_BITS], s[FAR_BYTES], s[DIVERGENCE], s[AGREEMENTS], s[COMPARED]));
      }
    }
  }

  static TaskScore taskScore(String set, boolean[] right) {
    List<Integer> wrong = new ArrayList<>();
    for (int i = 0; i < right.length; i++) {
      if (!right[i]) {
        wrong.add(i);
      }
    }
    return new TaskScore(
        set, right.length, right.length - wrong.size(), wrong.isEmpty() ? right.length : wrong.get(0));
  }

  /** The first of the largest. */
  static int likeliest(float[] logits) {
    int best = 0;
    for (int i = 1; i < logits.length; i++) {
      if (logits[i] > logits[best]) {
        best = i;
      }
    }
    return best;
  }
}
