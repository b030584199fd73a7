package dev.kvasir.lab.evaluate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.junit.jupiter.api.Test;

class FigureTest {

  @Test
  void meanAndItsError() {
    Figure figure = Figure.mean(List.of(1.0, 2.0, 6.0));
    assertEquals(3, figure.value());
    // Variance (4 + 1 + 9) / 2, over 3 samples.
    assertEquals(Math.sqrt(7 / 3.0), figure.error(), 1e-12);
    assertEquals(3, figure.samples());
  }

  @Test
  void ratioOfSums() {
    Figure figure = Figure.ratio(new double[] {2, 6}, new double[] {1, 3});
    assertEquals(2, figure.value());
    assertEquals(0, figure.error());
    Figure uneven = Figure.ratio(new double[] {1, 5}, new double[] {1, 1});
    assertEquals(3, uneven.value());
    assertEquals(2, uneven.error(), 1e-12);
  }

  @Test
  void fewSamples() {
    assertTrue(Double.isNaN(Figure.mean(List.of(4.0)).error()));
    assertFalse(Figure.mean(List.of()).present());
    assertFalse(Figure.ratio(new double[] {1}, new double[] {0}).present());
  }
}
