package dev.kvasir;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.error.NotFiniteException;
import dev.kvasir.method.Uniform;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.ShortBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Test;

/** One call that appends to many sequences, against one call for each. */
class AppendBatchTest {

  private static final int HEADS = 2;
  private static final int DIM = 32;
  private static final int ROW = HEADS * DIM;

  private final Random random = new Random(12);

  private static KvCache cache(long budget) {
    KvCache.Builder builder = Testing.cache(Testing.small()).method(Uniform.bits(2).window(20));
    return (budget == 0 ? builder : builder.budgetBytes(budget)).build();
  }

  private static List<KvSequence> sequences(KvCache cache, int count) {
    List<KvSequence> sequences = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      sequences.add(cache.newSequence());
    }
    return sequences;
  }

  private static float[] from(float[] rows, int token, int tokens) {
    return java.util.Arrays.copyOfRange(rows, token * ROW, (token + tokens) * ROW);
  }

  /** Heads first: [heads][tokens][dim]. */
  private static float[] headsFirst(float[] rows, int tokens) {
    float[] turned = new float[rows.length];
    for (int t = 0; t < tokens; t++) {
      for (int h = 0; h < HEADS; h++) {
        System.arraycopy(rows, t * ROW + h * DIM, turned, (h * tokens + t) * DIM, DIM);
      }
    }
    return turned;
  }

  @Test
  void isWhatSingleAppendsAre() {
    try (KvCache together = cache(0);
        KvCache alone = cache(0)) {
      List<KvSequence> batch = sequences(together, 5);
      List<KvSequence> twins = sequences(alone, 5);
      for (int step = 0; step < 20; step++) {
        int[] tokens = new int[5];
        int all = 0;
        for (int i = 0; i < 5; i++) {
          tokens[i] = random.nextInt(step % 4 == 0 ? 150 : 3);
          all += tokens[i];
        }
        if (all == 0) {
          tokens[2] = all = 1;
        }
        float[] keys = Testing.gaussian(random, all * ROW);
        float[] values = Testing.gaussian(random, all * ROW);
        int layer = step % 2;
        FloatBuffer direct =
            ByteBuffer.allocateDirect(all * ROW * Float.BYTES).order(ByteOrder.nativeOrder()).asFloatBuffer();
        direct.put(values).flip();
        if (step % 3 == 0) {
          Rows turned = Rows.of(headsFirst(keys, all)).strides(DIM, (long) all * DIM);
          together.append(layer, batch, tokens, turned, Rows.of(direct));
        } else {
          together.append(layer, batch, tokens, Rows.of(keys), Rows.of(direct));
        }
        int first = 0;
        for (int i = 0; i < 5; i++) {
          if (tokens[i] > 0) {
            twins.get(i).append(layer, from(keys, first, tokens[i]), from(values, first, tokens[i]), tokens[i]);
          }
          first += tokens[i];
        }
      }
      for (int i = 0; i < 5; i++) {
        for (int layer = 0; layer < 2; layer++) {
          int length = (int) twins.get(i).length(layer);
          assertEquals(length, batch.get(i).length(layer));
          for (Side side : Side.values()) {
            assertArrayEquals(
                twins.get(i).read(layer, side, 0, length), batch.get(i).read(layer, side, 0, length));
          }
        }
      }
      assertEquals(alone.stats().bytes(), together.stats().bytes());
    }
  }

  @Test
  void sixteenBitElements() {
    try (KvCache cache = cache(0)) {
      List<KvSequence> batch = sequences(cache, 2);
      short[] bits = new short[3 * ROW];
      java.util.Arrays.fill(bits, (short) 0x3F80); // 1 as bfloat16, 1.875 as float16
      cache.append(
          0,
          batch,
          new int[] {1, 2},
          Rows.of(ShortBuffer.wrap(bits), ElementType.BFLOAT16),
          Rows.of(ShortBuffer.wrap(bits), ElementType.FLOAT16));
      assertEquals(1.0f, batch.get(1).read(0, Side.KEYS, 1, 1)[5]);
      assertEquals(1.875f, batch.get(1).read(0, Side.VALUES, 1, 1)[5]);
    }
  }

  @Test
  void allOrNothing() {
    float[] rows = Testing.gaussian(random, 300 * ROW);
    long block = 16L * 2 * ROW * Short.BYTES;
    try (KvCache cache = cache(9 * block);
        KvCache other = cache(0)) {
      List<KvSequence> batch = sequences(cache, 3);
      Rows good = Rows.of(rows);
      cache.append(0, batch, new int[] {1, 0, 2}, good, good);
      long bytes = cache.stats().bytes();
      BudgetExceededException full =
          assertThrows(
              BudgetExceededException.class, () -> cache.append(0, batch, new int[] {1, 100, 100}, good, good));
      assertEquals(0, full.layer());
      float[] bad = rows.clone();
      bad[4 * ROW + 1] = Float.NaN;
      assertThrows(
          NotFiniteException.class, () -> cache.append(0, batch, new int[] {1, 1, 3}, good, Rows.of(bad)));
      Class<IllegalArgumentException> argument = IllegalArgumentException.class;
      assertThrows(argument, () -> cache.append(0, batch, new int[] {1, 1}, good, good));
      assertThrows(argument, () -> cache.append(0, batch, new int[] {0, 0, 0}, good, good));
      assertThrows(argument, () -> cache.append(0, batch, new int[] {1, -1, 1}, good, good));
      assertThrows(argument, () -> cache.append(2, batch, new int[] {1, 1, 1}, good, good));
      assertThrows(argument, () -> cache.append(0, batch, new int[] {100, 100, 101}, good, good));
      assertThrows(argument, () -> cache.append(0, List.of(), new int[0], good, good));
      assertThrows(argument, () -> cache.append(0, batch, new int[] {1, 1, 1}, good.strides(3, 5), good));
      List<KvSequence> twice = List.of(batch.get(0), batch.get(0));
      assertThrows(argument, () -> cache.append(0, twice, new int[] {1, 1}, good, good));
      List<KvSequence> foreign = List.of(batch.get(0), other.newSequence());
      assertThrows(argument, () -> cache.append(0, foreign, new int[] {1, 1}, good, good));
      KvSequence closed = cache.newSequence();
      closed.close();
      List<KvSequence> withClosed = List.of(batch.get(0), closed);
      assertThrows(IllegalStateException.class, () -> cache.append(0, withClosed, new int[] {1, 1}, good, good));
      assertEquals(bytes, cache.stats().bytes());
      assertEquals(1, batch.get(0).length(0));
      assertEquals(0, batch.get(1).length(0));
      assertEquals(2, batch.get(2).length(0));
    }
  }
}
