package dev.kvasir.codebook;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.error.NotFiniteException;
import dev.kvasir.training.TrainingProgress;
import dev.kvasir.training.ValueFitter;
import dev.kvasir.training.ValueTrainer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CancellationException;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

@Tag("jnicheck")
class ValueCodebookTest {

  private static final int WIDTH = 64;

  @Test
  void fitsWhatACacheStoresValuesWith() {
    float[] rows = CommVqTesting.correlated(3, 1, 512, WIDTH);
    float[] fresh = CommVqTesting.correlated(3, 2, 128, WIDTH);
    List<TrainingProgress> seen = new ArrayList<>();
    ValueCodebook codebook;
    try (ValueFitter fitter = ValueFitter.of(WIDTH, 64)) {
      fitter.add(rows, 512);
      codebook = fitter.train(seen::add);
    }
    for (int i = 1; i < seen.size(); i++) {
      assertTrue(seen.get(i).error() <= seen.get(i - 1).error());
    }
    assertEquals(1, seen.get(seen.size() - 1).done());
    double trained = CommVqTesting.error(CommVqTesting.stored(codebook, rows), rows);
    assertEquals(trained, seen.get(seen.size() - 1).error(), 1e-4 * trained);
    double error = CommVqTesting.error(CommVqTesting.stored(codebook, fresh), fresh);
    assertTrue(error < 0.05 * CommVqTesting.meanSquare(fresh), () -> "error " + error);
    assertTrue(error < CommVqTesting.uniformError(fresh, WIDTH, false, WIDTH, 1));
    assertEquals(1.25, codebook.bitsPerElement());
    assertEquals(codebook, new ValueCodebook(WIDTH, 64, codebook.table(), codebook.thresholds()));
    assertNotEquals(codebook, new ValueCodebook(WIDTH, 64, codebook.table(), null));
    assertTrue(codebook.toString().contains("64"));
  }

  @Test
  void trainsAnEncoder() {
    float[] rows = CommVqTesting.correlated(3, 1, 384, WIDTH);
    ValueTrainer.Builder options = ValueTrainer.builder(WIDTH, 32).hidden(48).steps(60).batch(32).learningRate(5e-3);
    TrainedValues trained;
    double[] first = {0};
    try (ValueTrainer trainer = options.build()) {
      trainer.add(rows, 384);
      trained =
          trainer.train(
              progress -> {
                if (first[0] == 0) {
                  first[0] = progress.error();
                }
              });
    }
    double plain = CommVqTesting.error(CommVqTesting.stored(trained, rows, 0), rows);
    double refined = CommVqTesting.error(CommVqTesting.stored(trained, rows, 10), rows);
    assertTrue(plain < first[0], () -> plain + " after, " + first[0] + " before");
    assertTrue(refined < plain);
    try (ValueTrainer trainer = options.build()) {
      trainer.add(rows, 384);
      assertEquals(trained, trainer.train(progress -> {}));
    }
    // From a codebook that is good already.
    try (ValueFitter fitter = ValueFitter.of(WIDTH, 32, 3);
        ValueTrainer trainer = options.build()) {
      fitter.add(rows, 384);
      ValueCodebook fitted = fitter.train(progress -> {});
      try (ValueTrainer warm = options.start(fitted).steps(1).learningRate(1e-6).build()) {
        warm.add(rows, 384);
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
    ValueEncoder.Weights weights = weights(WIDTH, 8, 16);
    ValueEncoder encoder = new ValueEncoder(weights);
    assertEquals(16, encoder.codes());
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
