package dev.kvasir.lab.evaluate;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.Side;
import dev.kvasir.runner.Decoder;
import dev.kvasir.runner.Model;
import java.nio.FloatBuffer;
import java.util.Arrays;
import java.util.List;

/**
 * Where a method errs: attention over the very same keys and values, compared head by head with 16 bits. Unlike
 * predictions, this is the error of one layer alone, without what layers before it did to its input.
 */
final class HeadErrors {

  /** Newest tokens of the text whose queries are asked. */
  private static final int QUERIES = 32;

  private final Model model;
  private final KvSequence reference;
  private final int tokens;
  private final int asked;
  private final float[][] queries;
  private final float[][] outputs;

  /** Takes the queries of a sample that a 16-bit sequence has read. The sequence must stay open. */
  HeadErrors(Decoder decoder, KvSequence reference, Sample sample) {
    this.model = decoder.model();
    this.reference = reference;
    this.tokens = (int) reference.length();
    this.asked = Math.min(QUERIES, tokens - 1);
    this.queries = new float[reference.cache().geometry().layers()][];
    this.outputs = new float[queries.length][];
    try (KvSequence again = reference.fork()) {
      again.truncate(tokens - asked);
      decoder.probe(this::keep);
      decoder.decode(
          List.of(new Decoder.Feed(again, sample.tokens(), tokens - asked, asked, 0)), (feed, token, logits) -> {});
    } finally {
      decoder.probe(null);
    }
  }

  private void keep(int layer, FloatBuffer asking, FloatBuffer found, int rows) {
    int size = rows * reference.cache().geometry().querySize(layer);
    queries[layer] = new float[size];
    outputs[layer] = new float[size];
    asking.get(0, queries[layer]);
    found.get(0, outputs[layer]);
  }

  /** {@code [layer][query head]}: length of the difference of outputs, relative. */
  double[][] of(MethodEntry method, Calibrations calibrations) {
    try (KvCache cache = method.factory().create(request(calibrations));
        KvSequence sequence = cache.newSequence()) {
      double[][] errors = new double[queries.length][];
      for (int layer = 0; layer < queries.length; layer++) {
        // Methods that go by queries must have seen some when pages are sealed, as they have when a model runs.
        sequence.observe(layer, queries[layer], asked);
        transfer(model, reference, sequence, layer, tokens);
        float[] found = new float[queries[layer].length];
        sequence.attend(layer, queries[layer], found, asked);
        errors[layer] = compare(outputs[layer], found, cache.geometry().queryHeads(layer));
      }
      return errors;
    }
  }

  private MethodEntry.Request request(Calibrations calibrations) {
    return new MethodEntry.Request(reference.cache().geometry(), 1, tokens, calibrations);
  }

  /** Appends the first tokens of one sequence's layer to another's, in one piece. */
  static void transfer(Model model, KvSequence from, KvSequence to, int layer, int tokens) {
    float[] keys = from.read(layer, Side.KEYS, 0, tokens);
    if (to.cache().method().keysBeforeRope()) {
      model.config().rope().rotateBack(keys, tokens, to.cache().geometry().kvHeads(layer), 0);
    }
    to.append(layer, keys, from.read(layer, Side.VALUES, 0, tokens), tokens);
  }

  private double[] compare(float[] expected, float[] found, int heads) {
    int headDim = expected.length / (asked * heads);
    double[] difference = new double[heads];
    double[] all = new double[heads];
    for (int i = 0; i < expected.length; i++) {
      int head = i / headDim % heads;
      difference[head] += Math.pow(found[i] - expected[i], 2);
      all[head] += Math.pow(expected[i], 2);
    }
    double[] errors = new double[heads];
    Arrays.setAll(errors, h -> all[h] == 0 ? 0 : Math.sqrt(difference[h] / all[h]));
    return errors;
  }
}
