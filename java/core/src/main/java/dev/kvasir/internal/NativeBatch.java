package dev.kvasir.internal;

import java.nio.ByteBuffer;

/**
 * An AttendBatch of native code ({@code kvasir/attend.h}), written field by field where they lie: one call of native code
 * instead of one for each. The library does not compile where they lie elsewhere ({@code cache/query_batch.cc}).
 */
public final class NativeBatch {

  static final int BYTES = 152;
  private static final int QUERIES = 40;
  private static final int OUTPUTS = 72;

  private final ByteBuffer fields;
  private int mostTokens = 1;

  NativeBatch(NativeMemory memory, ByteBuffer fields, int layer, long[] ids) {
    this.fields = fields;
    for (int i = 0; i < BYTES; i += Long.BYTES) {
      fields.putLong(i, 0);
    }
    fields.putInt(0, layer);
    fields.putLong(8, memory.in(ids).address());
    fields.putInt(16, ids.length);
    fields.putInt(32, 1);
    learnedSinks(true);
  }

  /** Query tokens of each sequence. */
  public NativeBatch tokens(NativeMemory memory, int[] tokens) {
    fields.putLong(24, memory.in(tokens).address());
    for (int each : tokens) {
      mostTokens = Math.max(mostTokens, each);
    }
    return this;
  }

  /** Query tokens of all of them. */
  public NativeBatch tokensEach(int tokens) {
    fields.putInt(32, tokens);
    mostTokens = tokens;
    return this;
  }

  public NativeBatch queries(RowsTarget rows) {
    return rows(QUERIES, rows);
  }

  public NativeBatch outputs(RowsTarget rows) {
    return rows(OUTPUTS, rows);
  }

  /** 0 for none. */
  public NativeBatch logSums(long address) {
    fields.putLong(104, address);
    return this;
  }

  public NativeBatch learnedSinks(boolean count) {
    fields.put(112, (byte) (count ? 1 : 0));
    return this;
  }

  public NativeBatch masks(NativeMemory memory, long[] masks) {
    fields.putLong(120, memory.in(masks).address());
    return this;
  }

  public NativeBatch depths(NativeMemory memory, int[] depths) {
    fields.putLong(128, memory.in(depths).address());
    return this;
  }

  public NativeBatch onDevice(long stream) {
    fields.put(136, (byte) 1);
    fields.putLong(144, stream);
    return this;
  }

  int mostTokens() {
    return mostTokens;
  }

  private NativeBatch rows(int at, RowsTarget rows) {
    writeRows(fields, at, rows);
    return this;
  }

  /** A RowsView or MutableRowsView of native code. */
  static void writeRows(ByteBuffer fields, int at, RowsTarget rows) {
    fields.putLong(at, rows.address());
    fields.putLong(at + 8, 0);
    fields.putInt(at + 8, rows.type());
    fields.putLong(at + 16, rows.tokenStride());
    fields.putLong(at + 24, rows.headStride());
  }
}
