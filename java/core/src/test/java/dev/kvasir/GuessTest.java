package dev.kvasir;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.kvasir.method.Uniform;
import java.util.Arrays;
import java.util.Random;
import org.junit.jupiter.api.Test;

/** Speculative steps: guesses are appended, some of them stay. */
class GuessTest {

  private static final int ROW = 64;

  private final float[] rows = Testing.gaussian(new Random(4), 300 * ROW);

  private static void append(KvSequence sequence, float[] rows, int tokens) {
    sequence.append(0, rows, rows, tokens);
    sequence.append(1, rows, rows, tokens);
  }

  private float[] row(int token) {
    return Arrays.copyOfRange(rows, token * ROW, (token + 1) * ROW);
  }

  @Test
  void whatIsKeptIsWhatPlainAppendsGive() {
    try (KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(2)).build();
        KvSequence sequence = cache.newSequence();
        KvSequence plain = cache.newSequence()) {
      append(sequence, rows, 120);
      append(plain, rows, 120);
      sequence.guess();
      append(sequence, rows, 64);
      int[] kept = {1, 2, 7, 8, 9, 10, 11, 12, 13, 14, 20, 30, 63};
      sequence.keep(kept);
      float[] path = new float[kept.length * ROW];
      for (int i = 0; i < kept.length; i++) {
        System.arraycopy(row(kept[i]), 0, path, i * ROW, ROW);
      }
      append(plain, path, kept.length);
      for (int layer = 0; layer < 2; layer++) {
        assertEquals(133, sequence.length(layer));
        assertEquals(plain.pageCount(layer), sequence.pageCount(layer));
        for (Side side : Side.values()) {
          assertArrayEquals(plain.read(layer, side, 0, 133), sequence.read(layer, side, 0, 133));
        }
      }
    }
  }

  @Test
  void whatMakesNoSenseIsRefused() {
    Class<IllegalArgumentException> argument = IllegalArgumentException.class;
    try (KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(2)).build();
        KvSequence sequence = cache.newSequence()) {
      assertThrows(argument, () -> sequence.keep(0));
      append(sequence, rows, 5);
      sequence.guess();
      append(sequence, rows, 3);
      assertThrows(argument, sequence::guess);
      assertThrows(argument, () -> sequence.keep(3));
      assertThrows(argument, () -> sequence.keep(1, 1));
      assertThrows(argument, () -> sequence.keep(-1));
      assertThrows(argument, () -> sequence.append(0, rows, rows, 62));
      sequence.append(0, rows, rows, 1);
      assertThrows(argument, () -> sequence.keep(0));
      assertEquals(8, sequence.rollback());
      sequence.keep();
      assertEquals(5, sequence.length());
      assertThrows(argument, () -> sequence.keep());
    }
  }
}
