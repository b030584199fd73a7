package dev.kvasir.training;

import static dev.kvasir.Testing.assertNames;
import static dev.kvasir.Testing.gaussian;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.Testing;
import org.junit.jupiter.api.Test;

/** What trainers promise beside their codebooks, which the tests of those are about. */
class TrainerTest {

  @Test
  void thereIsNoResultBeforeTheFirstStep() {
    float[] rows = gaussian(Testing.random("thereIsNoResultBeforeTheFirstStep"), 32 * 32);
    try (KeyTrainer keys = KeyTrainer.builder(1, 32).stages(2).entries(16).steps(2).build();
        ValueTrainer values = ValueTrainer.builder(32, 16).hidden(16).steps(2).batch(4).build();
        ValueFitter fitter = ValueFitter.of(32, 16)) {
      keys.add(rows, 32);
      values.add(rows, 32);
      fitter.add(rows, 32);
      assertThrows(IllegalArgumentException.class, keys::result);
      assertThrows(IllegalArgumentException.class, values::result);
      assertThrows(IllegalArgumentException.class, fitter::result);
      assertTrue(keys.step() && values.step() && fitter.step());
      assertEquals(2, keys.result().stages());
      assertEquals(16, values.result().codebook().codes());
      assertEquals(16, fitter.result().codes());
    }
  }

  @Test
  void temperaturesHaveARange() {
    for (double beyond : new double[] {0, 1e-300, 1e-38, 0.9e-12, 1.1e6, 1e300, Double.NaN}) {
      for (int which = 0; which < 3; which++) {
        double[] t = {1, 1e-3, 1e-5};
        t[which] = beyond;
        KeyTrainer.Builder keys = KeyTrainer.builder(1, 32).temperatures(t[0], t[1], t[2]);
        assertNames(assertThrows(IllegalArgumentException.class, keys::build), "temperature", "1e-12..1e6");
      }
      ValueTrainer.Builder values = ValueTrainer.builder(32, 16).temperature(beyond);
      assertNames(assertThrows(IllegalArgumentException.class, values::build), "temperature", "1e-12..1e6");
    }
    KeyTrainer.builder(1, 32).temperatures(1e6, 1e-12, 1e-12).build().close();
    ValueTrainer.builder(32, 16).temperature(1e-12).build().close();
  }
}
