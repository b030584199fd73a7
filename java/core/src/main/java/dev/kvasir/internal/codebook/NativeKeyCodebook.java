package dev.kvasir.internal.codebook;

import dev.kvasir.internal.jni.KeyCodebook;

/** See KeyCodebook in commvq.h. Sizes of arrays have been checked by callers. */
public final class NativeKeyCodebook extends NativeObject<KeyCodebook> {

  public NativeKeyCodebook(int kvHeads, int headDim, int pairs, int stages, int entries, float[] tables) {
    super(
        "the key codebook",
        memory -> KeyCodebook.create(kvHeads, headDim, pairs, stages, entries, memory.in(tables)),
        KeyCodebook::destroy);
  }

  public void readTables(float[] out) {
    runWith((target, memory) -> target.read_tables(memory.out(out)));
  }
}
