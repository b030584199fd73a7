package dev.kvasir.internal.codebook;

import dev.kvasir.internal.jni.ValueCodebook;
import org.jspecify.annotations.Nullable;

/** See ValueCodebook in commvq.h. Sizes of arrays have been checked by callers. */
public final class NativeValueCodebook extends NativeObject<ValueCodebook> {

  public NativeValueCodebook(int width, int codes, float[] table, float @Nullable [] thresholds) {
    super(
        "the value codebook",
        memory -> ValueCodebook.create(width, codes, memory.in(table), memory.inOrNull(thresholds)),
        ValueCodebook::destroy);
  }

  public void readTable(float[] out) {
    runWith((target, memory) -> target.read_table(memory.out(out)));
  }

  public void readThresholds(float[] out) {
    runWith((target, memory) -> target.read_thresholds(memory.out(out)));
  }
}
