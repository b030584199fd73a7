package dev.kvasir.internal;

import dev.kvasir.internal.jni.MutableRowsView;
import dev.kvasir.internal.jni.Native;
import dev.kvasir.internal.jni.RowsView;
import java.util.function.Function;

/** Merging results of attention. Sizes have been checked. */
public final class NativeMerge {

  private NativeMerge() {}

  /** outputs, others: where the rows are, in memory of the call. */
  public static void run(
      Function<NativeMemory, RowsTarget> outputs,
      float[] logSums,
      Function<NativeMemory, RowsTarget> others,
      float[] otherLogSums,
      int tokens,
      int heads,
      int headDim) {
    NativeCall.runWith(
        memory ->
            Native.merge_attention(
                new MutableRowsView(memory.rowsView(outputs.apply(memory))),
                memory.inOut(logSums, tokens * heads),
                new RowsView(memory.rowsView(others.apply(memory))),
                memory.in(otherLogSums, tokens * heads),
                tokens,
                heads,
                headDim));
  }
}
