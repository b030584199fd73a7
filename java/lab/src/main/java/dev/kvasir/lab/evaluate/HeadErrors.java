package dev.kvasir.lab.evaluate;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.lab.sample.Sample;
import dev.kvasir.runner.Decoder;
import java.util.Arrays;

/**
 * Where a method errs: attention over the very same keys and values, compared head by head with 16 bits. Unlike
 * predictions, this is the error of one layer alone, without what layers before it did to its input.
 */
final class HeadErrors {

  private final KvSequence reference;
  private final Transfer transfer;
  private final NewestQueries newest;

  /** Takes the queries of a sample that a 16-bit sequence has read. The sequence must stay open. */
  HeadErrors(Decoder decoder, KvSequence reference, Sample sample) {
    this.reference = reference;
    this.newest = NewestQueries.of(decoder, reference, sample, (int) reference.length());
    this.transfer = new Transfer(decoder.model(), reference, newest);
  }

  /** {@code [layer][query head]}: length of the difference of outputs, relative. */
  double[][] of(MethodEntry method, Calibrations calibrations) {
    int tokens = (int) reference.length();
    MethodEntry.Request request =
        new MethodEntry.Request(reference.cache().geometry(), 1, 0, tokens, calibrations);
    try (KvCache cache = method.factory().create(request);
        KvSequence sequence = cache.newSequence()) {
      double[][] errors = new double[newest.queries().length][];
      for (int layer = 0; layer < errors.length; layer++) {
        transfer.to(sequence, layer, tokens);
        float[] found = new float[newest.queries()[layer].length];
        sequence.attend(layer, newest.queries()[layer], found, newest.tokens());
        errors[layer] = compare(newest.outputs()[layer], found, cache.geometry().queryHeads(layer));
      }
      return errors;
    }
  }

  private double[] compare(float[] expected, float[] found, int heads) {
    int headDim = expected.length / (newest.tokens() * heads);
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
