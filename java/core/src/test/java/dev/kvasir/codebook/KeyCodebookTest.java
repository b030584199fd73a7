package dev.kvasir.codebook;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.Testing;
import dev.kvasir.error.NotFiniteException;
import dev.kvasir.rope.RopePairs;
import dev.kvasir.training.KeyTrainer;
import dev.kvasir.training.TrainingProgress;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CancellationException;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

@Tag("jnicheck")
class KeyCodebookTest {

  private static final int WIDTH = 2 * 32;

  private static KeyTrainer.Builder options() {
    return KeyTrainer.builder(2, 32).stages(3).entries(16).steps(8);
  }

  private static KeyCodebook train(KeyTrainer.Builder options, float[] rows) {
    try (KeyTrainer trainer = options.build()) {
      trainer.add(rows, rows.length / WIDTH);
      return trainer.train(progress -> {});
    }
  }

  @Test
  void trainsWhatACacheStoresKeysWith() {
    float[] rows = CommVqTesting.correlated(1, 1, 600, WIDTH);
    float[] fresh = CommVqTesting.correlated(1, 2, 256, WIDTH);
    List<TrainingProgress> seen = new ArrayList<>();
    try (KeyTrainer trainer = options().build()) {
      assertEquals(new TrainingProgress(0, Double.POSITIVE_INFINITY), trainer.progress());
      trainer.add(rows, 250);
      trainer.add(java.util.Arrays.copyOfRange(rows, 250 * WIDTH, rows.length), 350);
      KeyCodebook codebook = trainer.train(seen::add);
      for (int i = 1; i < seen.size(); i++) {
        assertTrue(seen.get(i).done() > seen.get(i - 1).done());
        assertTrue(Double.isFinite(seen.get(i).error()));
      }
      assertEquals(1, seen.get(seen.size() - 1).done());
      for (int stage = 1; stage <= 3; stage++) {
        assertTrue(trainer.error(1, stage) < trainer.error(1, stage - 1));
      }
      assertEquals(
          (trainer.error(0, 3) + trainer.error(1, 3)) / 2, seen.get(seen.size() - 1).error(), 1e-5);
      // Added in two parts or at once: the same.
      assertEquals(train(options(), rows), codebook);
      assertNotEquals(train(options().seed(2), rows), codebook);

      double error = CommVqTesting.error(CommVqTesting.stored(codebook, fresh, 1), fresh);
      assertTrue(error < 0.3 * CommVqTesting.meanSquare(fresh), () -> "error " + error);
      assertTrue(CommVqTesting.error(CommVqTesting.stored(codebook, fresh, 0), fresh) >= 0.99 * error);
      assertEquals(3 * 8 / 32.0 + 16.0 / 64, codebook.bitsPerElement());
      assertTrue(codebook.toString().contains("3 stages of 16"));
      assertEquals(codebook.hashCode(), train(options(), rows).hashCode());
    }
  }

  @Test
  void cancels() {
    float[] rows = CommVqTesting.correlated(1, 1, 100, WIDTH);
    try (KeyTrainer trainer = options().build()) {
      trainer.add(rows, 100);
      int[] steps = {0};
      assertThrows(
          CancellationException.class,
          () ->
              trainer.train(
                  progress -> {
                    if (++steps[0] == 3) {
                      trainer.cancel();
                    }
                  }));
      assertEquals(3, steps[0]);
      assertThrows(CancellationException.class, trainer::step);
      // What there is can be had.
      assertEquals(3, trainer.result().stages());
    }
    try (KeyTrainer trainer = options().build()) {
      trainer.add(rows, 100);
      assertThrows(
          ArithmeticException.class,
          () ->
              trainer.train(
                  progress -> {
                    throw new ArithmeticException("of the listener");
                  }));
      assertTrue(trainer.step());
    }
  }

  @Test
  void closes() {
    KeyTrainer trainer = options().build();
    trainer.close();
    trainer.close();
    assertThrows(IllegalStateException.class, trainer::step);
    assertThrows(IllegalStateException.class, () -> trainer.add(new float[WIDTH], 1));
    assertThrows(IllegalStateException.class, trainer::result);
  }

  @Test
  void refusesNonsense() {
    assertThrows(IllegalArgumentException.class, () -> options().entries(20).build());
    assertThrows(IllegalArgumentException.class, () -> options().stages(0).build());
    assertThrows(IllegalArgumentException.class, () -> options().steps(0).build());
    assertThrows(IllegalArgumentException.class, () -> options().temperatures(1, -1, 1).build());
    assertThrows(IllegalArgumentException.class, () -> KeyTrainer.builder(2, 40).build());
    try (KeyTrainer trainer = options().build()) {
      Testing.assertNames(
          assertThrows(IllegalArgumentException.class, () -> trainer.add(new float[WIDTH], 2)), WIDTH, 2 * WIDTH);
      trainer.add(new float[WIDTH], 1);
      Testing.assertNames(assertThrows(IllegalArgumentException.class, trainer::step), "1 tokens", 16);
    }
    float[] tables = new float[2 * 16 * 32];
    assertThrows(IllegalArgumentException.class, () -> new KeyCodebook(2, 32, RopePairs.HALVES, 2, 16, tables));
    KeyCodebook codebook = new KeyCodebook(2, 32, RopePairs.HALVES, 1, 16, tables);
    assertArrayEquals(tables, codebook.tables());
    tables[7] = Float.POSITIVE_INFINITY;
    assertThrows(NotFiniteException.class, () -> new KeyCodebook(2, 32, RopePairs.HALVES, 1, 16, tables));
  }
}
