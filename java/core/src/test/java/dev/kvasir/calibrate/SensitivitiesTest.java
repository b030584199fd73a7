package dev.kvasir.calibrate;

import static dev.kvasir.Testing.assertNames;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvGeometry;
import dev.kvasir.Side;
import dev.kvasir.Testing;
import dev.kvasir.error.NotFiniteException;
import dev.kvasir.method.Axis;
import dev.kvasir.rope.RopePairs;
import dev.kvasir.tensor.Safetensors;
import dev.kvasir.tensor.SafetensorsException;
import dev.kvasir.tensor.Tensor;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class SensitivitiesTest {

  @TempDir Path folder;

  private static KvGeometry geometry() {
    return KvGeometry.builder().layers(2).queryHeads(4).kvHeads(2).headDim(32).headDim(1, 48).build();
  }

  /** One sample of both layers: keys, their gradients, values, theirs. */
  private static float[][][] sample(Random random, int tokens) {
    float[][][] layers = new float[2][4][];
    for (int layer = 0; layer < 2; layer++) {
      for (int i = 0; i < 4; i++) {
        layers[layer][i] =
            Testing.gaussian(random, tokens * geometry().rowSize(layer), i % 2 == 0 ? 3 : 0.01);
      }
    }
    return layers;
  }

  private static Sensitivities.Accumulator add(Sensitivities.Accumulator to, float[][][] sample, int tokens) {
    for (int layer = 0; layer < 2; layer++) {
      float[][] x = sample[layer];
      to.add(layer, x[0], x[1], x[2], x[3], tokens);
    }
    return to;
  }

  @Test
  void addsUpSamples() {
    Random random = Testing.random("addsUpSamples");
    float[][][] a = sample(random, 100);
    float[][][] b = sample(random, 150);
    Sensitivities first = add(Sensitivities.accumulator(geometry()), a, 100).result();
    Sensitivities second = add(Sensitivities.accumulator(geometry()), b, 150).result();
    Sensitivities both = add(add(Sensitivities.accumulator(geometry()), a, 100), b, 150).result();
    assertEquals(List.of(1, 2, 4, 8, 16), both.widths());
    for (int layer = 0; layer < 2; layer++) {
      double before = Double.POSITIVE_INFINITY;
      for (int width : both.widths()) {
        for (Side side : Side.values()) {
          assertEquals(first.of(layer, side, width) + second.of(layer, side, width), both.of(layer, side, width));
        }
        assertEquals(both.of(layer, Side.KEYS, width) + both.of(layer, Side.VALUES, width), both.of(layer, width));
        assertTrue(both.of(layer, width) < before);
        before = both.of(layer, width);
      }
    }
  }

  @Test
  void equalsTheDefinition() {
    Random random = Testing.random("equalsTheDefinition");
    int tokens = 70;
    float[][][] x = sample(random, tokens);
    Sensitivities s = add(Sensitivities.accumulator(geometry()).widths(2, 1, 5), x, tokens).result();
    assertEquals(List.of(1, 2, 5), s.widths());
    for (int layer = 0; layer < 2; layer++) {
      int d = geometry().headDim(layer);
      for (int width : s.widths()) {
        for (Side side : Side.values()) {
          double expected = 0;
          float[] rows = x[layer][2 * side.ordinal()];
          float[] gradients = x[layer][2 * side.ordinal() + 1];
          for (int first = 0; first < rows.length; first += d) {
            double[] read = Quantiser.stored(Arrays.copyOfRange(rows, first, first + d), width);
            for (int i = 0; i < d; i++) {
              expected += Math.abs(gradients[first + i] * (rows[first + i] - read[i]));
            }
          }
          // Codes of doubles and of floats differ where an element lies between two levels, which costs the same.
          assertEquals(expected, s.of(layer, side, width), 1e-5 * expected);
        }
      }
    }
  }

  @Test
  void settingsMatter() {
    Random random = Testing.random("settingsMatter");
    int tokens = 128;
    float[][][] x = sample(random, tokens);
    for (int layer = 0; layer < 2; layer++) {
      int row = geometry().rowSize(layer);
      for (int i = 0; i < x[layer][0].length; i++) {
        // A channel pair that is fifty times wider: bad per token, harmless per channel or once scaled.
        if (i % row % geometry().headDim(layer) % (geometry().headDim(layer) / 2) == 3) {
          x[layer][0][i] *= 50;
        }
      }
    }
    Sensitivities plain = add(Sensitivities.accumulator(geometry()), x, tokens).result();
    Sensitivities channels =
        add(Sensitivities.accumulator(geometry()).quantiser(Side.KEYS, Axis.CHANNEL, 64), x, tokens).result();
    float[][] lambda = {new float[64], new float[96]};
    for (float[] factors : lambda) {
      int d = factors.length / 2;
      for (int i = 0; i < factors.length; i++) {
        factors[i] = i % d % (d / 2) == 3 ? 50 : 1;
      }
    }
    KeyScaling scaling = KeyScaling.of(geometry(), RopePairs.HALVES, List.of(lambda));
    Sensitivities scaled = add(Sensitivities.accumulator(geometry()).keyScaling(scaling), x, tokens).result();
    for (int layer = 0; layer < 2; layer++) {
      assertTrue(channels.of(layer, Side.KEYS, 4) < 0.5 * plain.of(layer, Side.KEYS, 4));
      assertTrue(scaled.of(layer, Side.KEYS, 4) < 0.5 * plain.of(layer, Side.KEYS, 4));
      assertEquals(plain.of(layer, Side.VALUES, 4), channels.of(layer, Side.VALUES, 4));
      assertEquals(plain.of(layer, Side.VALUES, 4), scaled.of(layer, Side.VALUES, 4));
    }
  }

  @Test
  void readsFilesOfBothLayouts() throws IOException {
    Random random = Testing.random("readsFilesOfBothLayouts");
    int tokens = 33;
    float[][][] x = sample(random, tokens);
    Map<String, Tensor> tokensFirst = new TreeMap<>();
    Map<String, Tensor> headsFirst = new TreeMap<>();
    String[] names = {"k", "grad_k", "v", "grad_v"};
    for (int layer = 0; layer < 2; layer++) {
      int d = geometry().headDim(layer);
      for (int i = 0; i < 4; i++) {
        float[] turned = new float[x[layer][i].length];
        for (int t = 0; t < tokens; t++) {
          for (int h = 0; h < 2; h++) {
            System.arraycopy(x[layer][i], (t * 2 + h) * d, turned, (h * tokens + t) * d, d);
          }
        }
        tokensFirst.put("layers." + layer + "." + names[i], Tensor.ofFloats(x[layer][i], tokens, 2, d));
        headsFirst.put("layers." + layer + "." + names[i], Tensor.ofFloats(turned, 2, tokens, d));
      }
    }
    Sensitivities expected = add(Sensitivities.accumulator(geometry()), x, tokens).result();
    Path first = folder.resolve("tokens");
    Path second = folder.resolve("heads");
    Safetensors.write(first, Map.of(), tokensFirst);
    Safetensors.write(second, Map.of(), headsFirst);
    try (CalibrationTensors a =
            CalibrationTensors.open(geometry(), CalibrationTensors.Layout.TOKENS_FIRST, first);
        CalibrationTensors b = CalibrationTensors.open(geometry(), CalibrationTensors.Layout.HEADS_FIRST, second)) {
      assertEquals(expected, Sensitivities.accumulator(geometry()).add(a).result());
      assertEquals(expected, Sensitivities.accumulator(geometry()).add(b).result());
      assertNames(assertThrows(SafetensorsException.class, () -> a.sample(0)), "layers.0.q");
    }
    try (CalibrationTensors wrong =
        CalibrationTensors.open(geometry(), CalibrationTensors.Layout.HEADS_FIRST, first)) {
      assertNames(assertThrows(SafetensorsException.class, () -> wrong.keys(0)), "layers.0.k");
    }
    assertThrows(
        SafetensorsException.class,
        () -> CalibrationTensors.open(geometry(), CalibrationTensors.Layout.TOKENS_FIRST, first, second));
    assertThrows(
        SafetensorsException.class, () -> CalibrationTensors.open(geometry(), CalibrationTensors.Layout.TOKENS_FIRST));
    KvGeometry other = KvGeometry.builder().layers(2).queryHeads(4).kvHeads(2).headDim(32).build();
    try (CalibrationTensors a =
        CalibrationTensors.open(geometry(), CalibrationTensors.Layout.TOKENS_FIRST, first)) {
      assertThrows(IllegalArgumentException.class, () -> Sensitivities.accumulator(other).add(a));
    }
  }

  @Test
  void refusesWhatMakesNoSense() {
    float[] row = new float[64];
    Sensitivities.Accumulator accumulator = Sensitivities.accumulator(geometry());
    assertThrows(IllegalArgumentException.class, () -> accumulator.widths());
    assertThrows(IllegalArgumentException.class, () -> accumulator.widths(0));
    assertThrows(IllegalArgumentException.class, () -> accumulator.widths(2, 2));
    assertThrows(IllegalArgumentException.class, () -> accumulator.add(0, row, row, row, row, 2));
    assertThrows(IllegalArgumentException.class, () -> accumulator.add(0, row, row, row, new float[63], 1));
    assertThrows(IllegalArgumentException.class, () -> accumulator.add(0, row, row, row, row, 0));
    assertThrows(IllegalArgumentException.class, () -> accumulator.add(2, row, row, row, row, 1));
    float[] nan = row.clone();
    nan[40] = Float.NaN;
    assertNames(
        assertThrows(NotFiniteException.class, () -> accumulator.add(0, row, row, nan, row, 1)), "head 1", "channel 8");
    assertThrows(NotFiniteException.class, () -> accumulator.add(0, row, nan, row, row, 1));
    assertThrows(IllegalStateException.class, accumulator::result);
    accumulator.add(0, row, row, row, row, 1);
    assertNames(assertThrows(IllegalStateException.class, accumulator::result), "layer 1");
    assertThrows(IllegalStateException.class, () -> accumulator.widths(2));
    Sensitivities.Accumulator grouped = Sensitivities.accumulator(geometry()).quantiser(Side.KEYS, Axis.TOKEN, 33);
    assertThrows(IllegalArgumentException.class, () -> grouped.add(0, row, row, row, row, 1));
  }

  @Test
  void layersWithoutRowsOfTheirOwnNeedNoSample() throws IOException {
    KvGeometry shared =
        KvGeometry.builder().layers(3).queryHeads(4).kvHeads(2).headDim(32).source(0, 1).source(2, 1).build();
    Random random = Testing.random("layersWithoutRowsOfTheirOwnNeedNoSample");
    int tokens = 40;
    Map<String, Tensor> tensors = new TreeMap<>();
    float[][] x = new float[4][];
    String[] names = {"k", "grad_k", "v", "grad_v"};
    for (int i = 0; i < 4; i++) {
      x[i] = Testing.gaussian(random, tokens * 64, 1);
      tensors.put("layers.1." + names[i], Tensor.ofFloats(x[i], tokens, 2, 32));
    }
    Sensitivities added = Sensitivities.accumulator(shared).add(1, x[0], x[1], x[2], x[3], tokens).result();
    assertTrue(added.of(1, 4) > 0);
    assertEquals(0, added.of(0, 4));
    assertEquals(0, added.of(2, 4));
    Path file = folder.resolve("shared");
    Safetensors.write(file, Map.of(), tensors);
    try (CalibrationTensors text = CalibrationTensors.open(shared, CalibrationTensors.Layout.TOKENS_FIRST, file)) {
      assertEquals(added, Sensitivities.accumulator(shared).add(text).result());
    }
    assertNames(assertThrows(IllegalStateException.class, Sensitivities.accumulator(shared)::result), "layer 1");
    // Gradients of its attention belong to the rows of its source.
    assertThrows(
        IllegalArgumentException.class,
        () -> Sensitivities.accumulator(shared).add(2, x[0], x[1], x[2], x[3], tokens));
  }

  @Test
  void ofFilesThatAreRefusedNothingIsAdded() throws IOException {
    Random random = Testing.random("ofFilesThatAreRefusedNothingIsAdded");
    int tokens = 3;
    Map<String, Tensor> tensors = new TreeMap<>();
    for (String name : new String[] {"k", "grad_k", "v", "grad_v"}) {
      for (int layer = 0; layer < 2; layer++) {
        int d = geometry().headDim(layer);
        tensors.put(
            "layers." + layer + "." + name,
            Tensor.ofFloats(Testing.gaussian(random, tokens * 2 * d, 1), tokens, 2, d));
      }
    }
    Path good = folder.resolve("good");
    Safetensors.write(good, Map.of(), tensors);
    int last = geometry().headDim(1);
    float[] lost = tensors.get("layers.1.grad_v").toFloats();
    lost[lost.length - 1] = Float.NaN;
    tensors.put("layers.1.grad_v", Tensor.ofFloats(lost, tokens, 2, last));
    Path bad = folder.resolve("bad");
    Safetensors.write(bad, Map.of(), tensors);
    try (CalibrationTensors text =
            CalibrationTensors.open(geometry(), CalibrationTensors.Layout.TOKENS_FIRST, good);
        CalibrationTensors refused =
            CalibrationTensors.open(geometry(), CalibrationTensors.Layout.TOKENS_FIRST, bad)) {
      Sensitivities expected = Sensitivities.accumulator(geometry()).add(text).result();
      Sensitivities.Accumulator accumulator = Sensitivities.accumulator(geometry());
      assertThrows(NotFiniteException.class, () -> accumulator.add(refused));
      assertEquals(expected, accumulator.add(text).result());
    }
  }

  @Test
  void theFirstElementThatIsNoNumberIsNamed() {
    float[] row = new float[2 * 96];
    float[] bad = row.clone();
    float[] lost = row.clone();
    lost[5] = Float.POSITIVE_INFINITY;
    bad[96 + 48 + 7] = 40_000;
    bad[96 + 48 + 9] = Float.NaN;
    bad[2 * 96 - 1] = Float.NaN;
    for (Axis axis : Axis.values()) {
      Sensitivities.Accumulator accumulator = Sensitivities.accumulator(geometry()).quantiser(Side.KEYS, axis, 0);
      NotFiniteException refused =
          assertThrows(NotFiniteException.class, () -> accumulator.add(1, bad, row, row, row, 2));
      assertEquals(1, refused.token());
      assertEquals(1, refused.head());
      assertEquals(7, refused.channel());
      assertEquals(40_000, refused.value());
      assertEquals(1, refused.layer());
      assertNames(refused, "keys of layer 1", 40000);
      assertNames(
          assertThrows(NotFiniteException.class, () -> accumulator.add(1, row, row, row, lost, 2)),
          "values of layer 1", "gradients hold Infinity");
    }
  }
}
