package dev.kvasir;

import dev.kvasir.method.Uniform;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.util.Arrays;
import java.util.Random;

/**
 * What a call of {@code attend} costs from Java, on the backend that is the default: to be compared with the same call
 * in C++ (bench/cuda/cache_bench.cu on a GPU). Arguments: contexts.
 */
final class AttendTiming {

  private static final int KV_HEADS = 8;
  private static final int GROUP = 4;
  private static final int HEAD_DIM = 128;

  private AttendTiming() {}

  private static FloatBuffer direct(int count, Random random) {
    FloatBuffer buffer =
        ByteBuffer.allocateDirect(count * Float.BYTES).order(ByteOrder.nativeOrder()).asFloatBuffer();
    for (int i = 0; i < count; i++) {
      buffer.put(i, (float) random.nextGaussian());
    }
    return buffer;
  }

  /** Median microseconds of a call over rounds of 50. */
  private static double time(Runnable call) {
    for (int i = 0; i < 2000; i++) {
      call.run();
    }
    double[] rounds = new double[21];
    for (int round = 0; round < rounds.length; round++) {
      long begin = System.nanoTime();
      for (int i = 0; i < 50; i++) {
        call.run();
      }
      rounds[round] = (System.nanoTime() - begin) / 50e3;
    }
    Arrays.sort(rounds);
    return rounds[rounds.length / 2];
  }

  /**
   * Prints a line for each context.
   *
   * @param args contexts
   */
  public static void main(String[] args) {
    KvGeometry geometry =
        KvGeometry.builder().layers(1).queryHeads(KV_HEADS * GROUP).kvHeads(KV_HEADS).headDim(HEAD_DIM).build();
    System.out.println("attend from Java on " + Kvasir.load().defaultBackend() + ", direct buffers; microseconds a call");
    for (String argument : args) {
      int context = Integer.parseInt(argument);
      Random random = new Random(7);
      FloatBuffer rows = direct(context * KV_HEADS * HEAD_DIM, random);
      FloatBuffer query = direct(KV_HEADS * GROUP * HEAD_DIM, random);
      FloatBuffer output = direct(KV_HEADS * GROUP * HEAD_DIM, random);
      try (KvCache cache = KvCache.builder(geometry).method(Uniform.bits(2)).build();
          KvSequence sequence = cache.newSequence()) {
        sequence.append(0, rows, rows, context);
        System.out.printf("%8d %14.2f%n", context, time(() -> sequence.attend(0, query, output)));
      }
    }
  }
}
