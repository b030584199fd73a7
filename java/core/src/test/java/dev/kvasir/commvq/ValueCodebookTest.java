package dev.kvasir.commvq;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.NotFiniteException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CancellationException;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

@Tag("jnicheck")
class ValueCodebookTest {

  private static final int WIDTH = 64;

  @Test
  void fitsEncodesAndDecodes() {
    float[] rows = CommVqTesting.correlated(3, 1, 500, WIDTH);
    float[] fresh = CommVqTesting.correlated(3, 2, 130, WIDTH);
    List<TrainingProgress> seen = new ArrayList<>();
    ValueCodebook codebook;
    try (ValueFitter fitter = ValueFitter.of(WIDTH, 64)) {
      fitter.add(rows, 500);
      codebook = fitter.train(seen::add);
    }
    for (int i = 1; i < seen.size(); i++) {
      assertTrue(seen.get(i).error() <= seen.get(i - 1).error());
    }
    assertEquals(1, seen.get(seen.size() - 1).done());
    double trained = CommVqTesting.error(codebook.decode(codebook.encode(rows, 500)), rows);
    assertEquals(trained, seen.get(seen.size() - 1).error(), 1e-4 * trained);
    EncodedValues encoded = codebook.encode(fresh, 130);
    assertEquals(130 * 8, encoded.bits().length);
    double error = CommVqTesting.error(codebook.decode(encoded), fresh);
    assertTrue(error < 0.05 * CommVqTesting.meanSquare(fresh), () -> "error " + error);
    assertTrue(error < CommVqTesting.uniformError(fresh, WIDTH, false, WIDTH, 1));
    assertEquals(1.25, codebook.bitsPerElement());
    assertEquals(codebook, new ValueCodebook(WIDTH, 64, codebook.table(), codebook.thresholds()));
    assertNotEquals(codebook, new ValueCodebook(WIDTH, 64, codebook.table(), null));
    assertTrue(codebook.toString().contains("64"));
  }

  @Test
  void trainsAnEncoder() {
    float[] rows = CommVqTesting.correlated(3, 1, 400, WIDTH);
    ValueTrainer.Builder options = ValueTrainer.builder(WIDTH, 32).hidden(48).steps(60).batch(32).learningRate(5e-3);
    TrainedValues trained;
    double[] first = {0};
    try (ValueTrainer trainer = options.build()) {
      trainer.add(rows, 400);
      trained =
          trainer.train(
              progress -> {
                if (first[0] == 0) {
                  first[0] = progress.error();
                }
              });
    }
    ValueCodebook codebook = trained.codebook();
    double plain = CommVqTesting.error(codebook.decode(codebook.encode(rows, 400, trained.encoder(), 0)), rows);
    double refined = CommVqTesting.error(codebook.decode(codebook.encode(rows, 400, trained.encoder(), 10)), rows);
    assertTrue(plain < first[0], () -> plain + " after, " + first[0] + " before");
    assertTrue(refined < plain);
    try (ValueTrainer trainer = options.build()) {
      trainer.add(rows, 400);
      assertEquals(trained, trainer.train(progress -> {}));
    }
    // From a codebook that is good already.
    try (ValueFitter fitter = ValueFitter.of(WIDTH, 32, 3);
        ValueTrainer trainer = options.build()) {
      fitter.add(rows, 400);
      ValueCodebook fitted = fitter.train(progress -> {});
      try (ValueTrainer warm = options.start(fitted).steps(1).learningRate(1e-6).build()) {
        warm.add(rows, 400);
        float[] table = warm.train(progress -> {}).codebook().table();
        float[] start = fitted.table();
        for (int i = 0; i < table.length; i++) {
          assertEquals(start[i], table[i], 1e-3 * (1 + Math.abs(start[i])));
        }
      }
      trainer.cancel();
      assertThrows(CancellationException.class, trainer::step);
    }
    assertArrayEquals(trained.encoder().weights().scale(), new ValueEncoder(trained.encoder().weights()).weights().scale());
  }

  @Test
  void refusesNonsense() {
    assertThrows(IllegalArgumentException.class, () -> ValueFitter.of(WIDTH, 20));
    assertThrows(IllegalArgumentException.class, () -> ValueFitter.of(WIDTH, 32, 0));
    assertThrows(IllegalArgumentException.class, () -> ValueTrainer.builder(WIDTH, 32).batch(0).build());
    assertThrows(IllegalArgumentException.class, () -> ValueTrainer.builder(WIDTH, 32).hidden(0).build());
    float[] table = new float[32 * WIDTH];
    assertThrows(IllegalArgumentException.class, () -> new ValueCodebook(WIDTH, 48, table, null));
    assertThrows(IllegalArgumentException.class, () -> new ValueCodebook(WIDTH, 32, table, new float[31]));
    ValueCodebook codebook = new ValueCodebook(WIDTH, 32, table, null);
    assertThrows(IllegalArgumentException.class, () -> ValueTrainer.builder(WIDTH, 48).start(codebook));
    assertThrows(IllegalArgumentException.class, () -> codebook.encode(new float[63], 1));
    assertThrows(
        IllegalArgumentException.class, () -> codebook.decode(new EncodedValues(1, new byte[5], new short[1])));
    assertThrows(
        NotFiniteException.class,
        () -> codebook.decode(new EncodedValues(1, new byte[4], new short[] {(short) 0xFC00})));
    ValueEncoder.Weights weights = weights(WIDTH, 8, 16);
    ValueEncoder encoder = new ValueEncoder(weights);
    assertEquals(16, encoder.codes());
    CommVqTesting.assertNames(
        assertThrows(IllegalArgumentException.class, () -> codebook.encode(new float[WIDTH], 1, encoder, 0)), 16, 32);
    weights.scale()[2] = 0;
    assertThrows(IllegalArgumentException.class, () -> new ValueEncoder(weights));
    weights.scale()[2] = Float.NaN;
    assertThrows(NotFiniteException.class, () -> new ValueEncoder(weights));
    assertThrows(
        IllegalArgumentException.class,
        () ->
            new ValueEncoder(
                new ValueEncoder.Weights(
                    new float[64], new float[64], new float[63], new float[512], new float[8], new float[256],
                    new float[32])));
  }

  static ValueEncoder.Weights weights(int width, int hidden, int codes) {
    float[] scale = new float[width];
    java.util.Arrays.fill(scale, 1);
    return new ValueEncoder.Weights(
        scale,
        scale.clone(),
        new float[width],
        CommVqTesting.correlated(5, 1, hidden, width),
        new float[hidden],
        CommVqTesting.correlated(5, 2, 2 * codes, hidden),
        new float[2 * codes]);
  }
}
