package dev.kvasir.lab.evaluate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.method.PmKvq;
import dev.kvasir.runner.Model;
import dev.kvasir.runner.TinyModel;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** A budget that ends at some bits must be worth those bits, or claims at equal memory are none. */
class BudgetsTest {

  private static final int SEQUENCES = 3;

  @TempDir Path folder;
  private Model model;
  private KvGeometry geometry;
  private Calibrations calibrations;

  @BeforeEach
  void writeModel() throws Exception {
    TinyModel.qwen2(folder, 7);
    model = Model.load(folder);
    geometry = model.geometry();
    calibrations = new Calibrations(model, List.of());
  }

  /** Bytes after every sequence has grown to a length in steps, as decoding does. */
  private long bytes(KvCache cache, int tokens) {
    Random random = new Random(5);
    List<KvSequence> sequences = new ArrayList<>();
    for (int i = 0; i < SEQUENCES; i++) {
      sequences.add(cache.newSequence());
    }
    for (int at = 0; at < tokens; ) {
      int count = Math.min(1 + at % 7 * 20, tokens - at);
      for (KvSequence sequence : sequences) {
        for (int layer = 0; layer < geometry.layers(); layer++) {
          float[] rows = new float[count * geometry.rowSize(layer)];
          for (int i = 0; i < rows.length; i++) {
            rows[i] = (float) random.nextGaussian();
          }
          sequence.append(layer, rows, rows, count);
        }
      }
      at += count;
    }
    return cache.stats().bytes();
  }

  private long immediate(KvMethod method, int tokens) {
    try (KvCache cache = KvCache.builder(geometry).method(method).build()) {
      return bytes(cache, tokens);
    }
  }

  /** What progressive pages end at is what pages of that width from the start take, but for a page in some dozens. */
  @Test
  void budgetsEndWhereTheySay() {
    for (int tokens : new int[] {2047, 4096}) {
      for (int bits : new int[] {2, 4}) {
        long expected = immediate(PmKvq.floor(bits).startBits(bits), tokens);
        MethodEntry.Request request = new MethodEntry.Request(geometry, SEQUENCES, 0, tokens, calibrations);
        try (KvCache cache = Budgets.of(PmKvq.floor(bits), bits).create(request)) {
          long found = bytes(cache, tokens);
          String text = tokens + " tokens at " + bits + " bits: " + found + " bytes, " + expected + " from the start";
          assertTrue(found >= expected, text);
          // Room to time some steps: 32 rows and a page, beside three sequences.
          assertTrue(found <= 1.05 * expected, text);
        }
      }
    }
  }

  @Test
  void bitsAtOtherLengthsAreThoseOfACacheOfThatLength() {
    int tokens = 4096;
    long elements = 0;
    for (int layer = 0; layer < geometry.layers(); layer++) {
      elements += 2L * geometry.rowSize(layer) * tokens;
    }
    double expected = 8.0 * immediate(PmKvq.floor(2).startBits(2), tokens) / SEQUENCES / elements;
    double found = Budgets.of(PmKvq.floor(2), 2).bitsAt(tokens, geometry, calibrations);
    assertEquals(expected, found, 0.02 * expected);
    double longer = Budgets.of(PmKvq.floor(2), 2).bitsAt(131072, geometry, calibrations);
    assertTrue(longer < found && longer > 2, longer + " bits");
  }
}
