package dev.kvasir.calibrate;

import dev.kvasir.KvGeometry;
import dev.kvasir.error.NotFiniteException;
import dev.kvasir.internal.Calibration;
import dev.kvasir.internal.Checks;
import java.util.Arrays;

/** The calibration of one layer's keys: maxima in a first walk over the samples, errors of all alphas in a second. */
final class KeyScalingSearch {

  private final KvGeometry geometry;
  private final int layer;
  private final KeyScaling.Options options;
  private final double[] frequencies;

  KeyScalingSearch(KvGeometry geometry, int layer, KeyScaling.Options options) {
    this.geometry = geometry;
    this.layer = layer;
    this.options = options;
    this.frequencies = frequencies();
  }

  KeyScaling.Layer run(Iterable<AttentionSample> samples) {
    float[] maxima = maxima(samples);
    float[] candidates = candidates(maxima);
    double[] errors = errors(samples, candidates);
    int best = 0;
    for (int i = 1; i < errors.length; i++) {
      // Of equal errors the weakest scaling wins.
      if (errors[i] < errors[best]) {
        best = i;
      }
    }
    float[] lambda = Arrays.copyOfRange(candidates, best * maxima.length, (best + 1) * maxima.length);
    return new KeyScaling.Layer(geometry.headDim(layer), options.alphas().get(best), lambda, errors);
  }

  private float[] maxima(Iterable<AttentionSample> samples) {
    float[] maxima = new float[geometry.rowSize(layer)];
    int count = 0;
    for (AttentionSample sample : samples) {
      try {
        Calibration.raiseKeyMaxima(
            stretchedKeys(sample),
            sample.tokens(),
            geometry.kvHeads(layer),
            geometry.headDim(layer),
            options.rope().pairs().code(),
            maxima);
      } catch (NotFiniteException e) {
        throw Calibration.inLayer(e, "sample " + count, layer);
      }
      count++;
    }
    if (count == 0) {
      throw new IllegalArgumentException("layer " + layer + " has no sample");
    }
    return maxima;
  }

  /** The factors of every alpha, one after the other. */
  private float[] candidates(float[] maxima) {
    float[] all = new float[Math.multiplyExact(options.alphas().size(), maxima.length)];
    for (int i = 0; i < options.alphas().size(); i++) {
      float[] lambda = Calibration.scalingFactors(maxima, options.alphas().get(i));
      System.arraycopy(lambda, 0, all, i * maxima.length, maxima.length);
    }
    return all;
  }

  private double[] errors(Iterable<AttentionSample> samples, float[] candidates) {
    double[] errors = new double[options.alphas().size()];
    double energy = 0;
    int count = 0;
    for (AttentionSample sample : samples) {
      Calibration.Errors one;
      try {
        one =
            Calibration.keyScalingErrors(
                stretchedKeys(sample),
                sample.values(),
                sample.tokens(),
                stretchedQueries(sample),
                sample.queryTokens(),
                geometry.queryHeads(layer),
                geometry.kvHeads(layer),
                geometry.headDim(layer),
                geometry.softmaxScale(layer),
                options.bits(),
                options.group(),
                candidates,
                errors.length);
      } catch (NotFiniteException e) {
        throw Calibration.inLayer(e, "sample " + count, layer);
      }
      count++;
      for (int i = 0; i < errors.length; i++) {
        errors[i] += one.errors()[i];
      }
      energy += one.energy();
    }
    for (int i = 0; energy > 0 && i < errors.length; i++) {
      errors[i] /= energy;
    }
    return errors;
  }

  private float[] stretchedKeys(AttentionSample sample) {
    return stretched(
        "keys", sample.keys(), sample.tokens(), geometry.kvHeads(layer), 0, sample.keysRotated());
  }

  private float[] stretchedQueries(AttentionSample sample) {
    long needed = Checks.product(sample.queryTokens(), geometry.querySize(layer));
    // Of a longer array lastQueries, which knows no geometry, has taken other rows than the last.
    Checks.require(
        sample.queries().length == needed,
        "layer " + layer + ": queries have " + sample.queries().length + " elements, not the " + needed + " of "
            + sample.queryTokens() + " tokens");
    return stretched(
        "queries",
        sample.queries(),
        sample.queryTokens(),
        geometry.queryHeads(layer),
        sample.tokens() - sample.queryTokens(),
        sample.queriesRotated());
  }

  /** A copy of the rows as RoPE would leave them at stretched positions, with its attention factor. */
  private float[] stretched(String name, float[] rows, int tokens, int heads, long first, boolean rotated) {
    float[] turned =
        Calibration.rotated(
            name,
            rows,
            tokens,
            heads,
            geometry.headDim(layer),
            frequencies,
            options.rope().pairs().code(),
            first,
            rotated ? options.positionScale() - 1 : options.positionScale());
    float factor = (float) options.rope().attentionFactor();
    for (int i = 0; !rotated && factor != 1 && i < turned.length; i++) {
      turned[i] *= factor;
    }
    return turned;
  }

  private double[] frequencies() {
    int headDim = geometry.headDim(layer);
    Checks.require(
        options.rope().headDim() == headDim,
        "RoPE for " + options.rope().headDim() + " channels, layer " + layer + " has " + headDim);
    return options.rope().frequencies();
  }
}
