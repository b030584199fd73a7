package dev.kvasir.calibrate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvGeometry;
import dev.kvasir.LabModel;
import dev.kvasir.Side;
import dev.kvasir.internal.json.Json;
import dev.kvasir.method.Axis;
import dev.kvasir.rope.Rope;
import dev.kvasir.rope.RopePairs;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Calibration of a real model from its tensors and gradients; skipped where they are missing. */
class LabModelTest {

  private static final KvGeometry GEOMETRY = LabModel.geometry();
  private static final int TOKENS = 512;

  @TempDir Path folder;

  private static CalibrationTensors open() throws IOException {
    Path lab = LabModel.folder();
    return CalibrationTensors.open(
        GEOMETRY,
        CalibrationTensors.Layout.HEADS_FIRST,
        lab.resolve("calib.safetensors"),
        lab.resolve("calib-q-0.safetensors"));
  }

  /** Sum of |gradient * (x - quantised x)| by the definition of the reference: no rounding of parameters. */
  private static double exact(float[] rows, float[] gradients, boolean byChannel, int bits) {
    int width = 2 * 128;
    double sum = 0;
    for (int group = 0; group < rows.length / 128; group++) {
      int[] at = new int[128];
      for (int i = 0; i < 128; i++) {
        at[i] = byChannel ? (group / width * 128 + i) * width + group % width : group * 128 + i;
      }
      double[] elements = new double[128];
      for (int i = 0; i < 128; i++) {
        elements[i] = rows[at[i]];
      }
      double[] read = Quantiser.exact(elements, bits);
      for (int i = 0; i < 128; i++) {
        sum += Math.abs(gradients[at[i]] * (elements[i] - read[i]));
      }
    }
    return sum;
  }

  @Test
  void sensitivitiesAgreeWithTheReference() throws Exception {
    try (CalibrationTensors tensors = open()) {
      assertEquals(TOKENS, tensors.tokens());
      Map<String, Object> root =
          Json.object(Json.parse(Files.readAllBytes(LabModel.folder().resolve("sensitivity.json"))), "root");
      // The reference has keys per channel over 128 tokens and values per token over 128 channels.
      Sensitivities found =
          Sensitivities.accumulator(GEOMETRY)
              .widths(1, 2, 3, 4, 8)
              .quantiser(Side.KEYS, Axis.CHANNEL, 128)
              .add(tensors)
              .result();
      for (int width : found.widths()) {
        List<Object> layers = Json.array(Json.object(root.get("bits"), "bits").get("" + width), "layers");
        double worst = 0;
        for (int layer = 0; layer < GEOMETRY.layers(); layer++) {
          Map<String, Object> entry = Json.object(layers.get(layer), "entry");
          double expected = (Double) Json.array(entry.get("s_per_sequence"), "sequences").get(0);
          double definition =
              exact(tensors.keys(layer), tensors.keyGradients(layer), true, width)
                  + exact(tensors.values(layer), tensors.valueGradients(layer), false, width);
          String what = "layer " + layer + ", " + width + " bits";
          assertEquals(expected, definition, 1e-9 * expected, what);
          // The library rounds the range up to float16. That moves levels by up to 2^-10 of the range, so at 8 bits
          // single errors have little in common with the reference any more, but their sum still has.
          double tolerance = width <= 4 ? 0.005 : 0.02;
          assertEquals(expected, found.of(layer, width), tolerance * expected, what);
          worst = Math.max(worst, Math.abs(found.of(layer, width) / expected - 1));
        }
        System.out.printf("sensitivities at %d bits: within %.2e of the reference%n", width, worst);
      }
    }
  }

  @Test
  void scalingPlanAndProfile() throws Exception {
    try (CalibrationTensors tensors = open()) {
      long start = System.nanoTime();
      KeyScaling scaling =
          KeyScaling.calibrate(GEOMETRY, KeyScaling.Options.of(Rope.plain(RopePairs.HALVES, 10_000, GEOMETRY.headDim(0))), 48, List.of(tensors));
      System.out.printf("key scaling of 8 layers, 512 tokens: %.1f s%n", (System.nanoTime() - start) / 1e9);
      for (int layer = 0; layer < GEOMETRY.layers(); layer++) {
        double[] errors = scaling.errors(layer);
        double best = errors[scaling.alphas().indexOf(scaling.alpha(layer))];
        System.out.printf(
            "layer %d: alpha %.2f, error %.3e (%.3e without)%n", layer, scaling.alpha(layer), best, errors[0]);
        for (double error : errors) {
          assertTrue(best <= error);
        }
        assertTrue(best < errors[0], "scaling should help layer " + layer);
      }

      Sensitivities plain = Sensitivities.accumulator(GEOMETRY).add(tensors).result();
      Sensitivities scaled = Sensitivities.accumulator(GEOMETRY).keyScaling(scaling).add(tensors).result();
      double before = 0;
      double after = 0;
      for (int layer = 0; layer < GEOMETRY.layers(); layer++) {
        before += plain.of(layer, Side.KEYS, 4);
        after += scaled.of(layer, Side.KEYS, 4);
      }
      System.out.printf("sensitivity of all keys at 4 bits: %.1f, %.1f scaled%n", before, after);
      assertTrue(after < before);

      BitAllocator allocator = BitAllocator.of(GEOMETRY, scaled, PageCost.perToken(GEOMETRY)).widths(2, 4, 8);
      BitPlan joint = allocator.averageBits(3.25).solve();
      BitPlan apart = allocator.separateSides(true).solve();
      System.out.println("3.25 bits: " + joint + "\n      apart: " + apart);
      assertTrue(joint.optimal() && apart.optimal());
      assertTrue(apart.objective() <= joint.objective());
      assertTrue(joint.objective() < allocator.separateSides(false).averageBits(2.25).solve().objective());

      Path path = folder.resolve("lab-a.profile");
      Profile.builder(GEOMETRY).keyScaling(scaling).sensitivities(scaled).plan(apart).build().save(path);
      Profile loaded = Profile.load(path, GEOMETRY);
      assertEquals(scaling, loaded.keyScaling().orElseThrow());
      assertEquals(scaled, loaded.sensitivities().orElseThrow());
      assertEquals(apart, loaded.plan().orElseThrow());
    }
  }
}
