package dev.kvasir.internal.commvq;

import dev.kvasir.internal.Floats;
import dev.kvasir.internal.jni.ValueCodebook;
import org.jspecify.annotations.Nullable;

/** See ValueCodebook in commvq.h. Checks of arrays have been checked by callers. */
public final class NativeValueCodebook extends NativeObject<ValueCodebook> {

  public NativeValueCodebook(int width, int codes, float[] table, float @Nullable [] thresholds) {
    super("the value codebook", () -> ValueCodebook.create(width, codes, table, thresholds), ValueCodebook::destroy);
  }

  public void readTable(float[] out) {
    run(target -> target.read_table(out));
  }

  public void readThresholds(float[] out) {
    run(target -> target.read_thresholds(out));
  }

  public void encode(float[] rows, int tokens, int elements, byte[] bits, short[] gains) {
    run(target -> target.encode(Floats.exact(rows, elements), tokens, bits, gains));
  }

  public void refine(float[] rows, int tokens, int elements, int flips, byte[] bits, short[] gains) {
    run(target -> target.refine(Floats.exact(rows, elements), tokens, flips, bits, gains));
  }

  public void decode(byte[] bits, short[] gains, int tokens, float[] rows) {
    run(target -> target.decode(bits, gains, tokens, rows));
  }
}
