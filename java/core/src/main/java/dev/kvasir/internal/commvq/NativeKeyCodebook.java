package dev.kvasir.internal.commvq;

import dev.kvasir.internal.Floats;
import dev.kvasir.internal.jni.KeyCodebook;

/** See KeyCodebook in commvq.h. Checks of arrays have been checked by callers. */
public final class NativeKeyCodebook extends NativeObject<KeyCodebook> {

  public NativeKeyCodebook(int kvHeads, int headDim, int pairs, int stages, int entries, float[] tables) {
    super(
        "the key codebook",
        () -> KeyCodebook.create(kvHeads, headDim, pairs, stages, entries, tables),
        KeyCodebook::destroy);
  }

  public long codeBytes(long tokens) {
    return call(target -> target.code_bytes(tokens));
  }

  public void readTables(float[] out) {
    run(target -> target.read_tables(out));
  }

  public void encode(float[] rows, int tokens, int elements, int refinements, byte[] codes, short[] norms) {
    run(target -> target.encode(Floats.exact(rows, elements), tokens, refinements, codes, norms));
  }

  public void decode(byte[] codes, short[] norms, int tokens, float[] rows) {
    run(target -> target.decode(codes, norms, tokens, rows));
  }
}
