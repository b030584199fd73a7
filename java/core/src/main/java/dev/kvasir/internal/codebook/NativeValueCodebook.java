package dev.kvasir.internal.codebook;

import dev.kvasir.internal.jni.ValueCodebook;
import org.jspecify.annotations.Nullable;

/** See ValueCodebook in commvq.h. Sizes of arrays have been checked by callers. */
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
}
