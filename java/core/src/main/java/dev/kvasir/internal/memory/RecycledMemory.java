package dev.kvasir.internal.memory;

import dev.kvasir.error.KvException;
import dev.kvasir.file.BlockMemory;
import dev.kvasir.internal.MemoryPiece;
import java.lang.ref.Cleaner;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.Map;
import java.util.Queue;
import java.util.function.IntFunction;
import org.jspecify.annotations.Nullable;

/**
 * Memory that is slow to get, and so used again: each block has a piece of it, and a buffer of its own over that. A piece is
 * free again when the buffer, and all that were made from it, cannot be reached any more. Where there is no piece for a
 * block it is in plain memory: slower, and nothing else.
 */
public final class RecycledMemory implements BlockMemory {

  /** Sizes of pieces are multiples of this, so that they fit many blocks. */
  static final int GRAIN = 64 << 10;

  private static final Cleaner CLEANER = Cleaner.create();

  private final IntFunction<@Nullable MemoryPiece> source;
  private final long most;
  private final BlockMemory plain = BlockMemory.plain();
  private final Map<Integer, Queue<MemoryPiece>> idle = new HashMap<>();
  private long taken;
  private boolean closed;

  /** Memory from a source; plain memory where it has none at all. */
  public static BlockMemory of(IntFunction<@Nullable MemoryPiece> source, long most) {
    MemoryPiece first = source.apply(GRAIN);
    if (first == null) {
      return BlockMemory.plain();
    }
    first.free();
    return new RecycledMemory(source, most);
  }

  /**
   * Memory from a source.
   *
   * @param source pieces of so many bytes; null, or an exception, where there is none left
   * @param most bytes of all pieces together
   */
  RecycledMemory(IntFunction<@Nullable MemoryPiece> source, long most) {
    this.source = source;
    this.most = most;
  }

  @Override
  public ByteBuffer hold(ByteBuffer block) {
    int room = (int) Math.min(Integer.MAX_VALUE, (block.remaining() + GRAIN - 1L) / GRAIN * GRAIN);
    Loan loan = new Loan(room);
    if (room == 0 || !take(loan)) {
      return plain.hold(block);
    }
    ByteBuffer view;
    try {
      view = loan.piece.view();
      CLEANER.register(view, loan);
    } catch (Throwable e) { // Java has no memory, or no stack, left
      loan.run();
      throw e;
    }
    return view.put(block.duplicate()).flip();
  }

  /** A piece of so many bytes for the loan; false where there is none. */
  private boolean take(Loan loan) {
    synchronized (this) {
      Queue<MemoryPiece> free = idle.get(loan.room);
      if (closed) {
        return false;
      }
      if (free != null && !free.isEmpty()) {
        loan.piece = free.poll();
        return true;
      }
      if (taken + loan.room > most) {
        return false;
      }
      taken += loan.room;
    }
    try {
      loan.piece = source.apply(loan.room);
    } catch (KvException e) { // what is pinned is not to be had
    } finally {
      if (loan.piece == null) {
        synchronized (this) {
          taken -= loan.room;
        }
      }
    }
    return loan.piece != null;
  }

  /** A piece that somebody may look at. To run it ends the loan, once, however often it is run. */
  private final class Loan implements Runnable {
    private final int room;
    private @Nullable MemoryPiece piece;

    Loan(int room) {
      this.room = room;
    }

    @Override
    public void run() {
      MemoryPiece back;
      synchronized (RecycledMemory.this) {
        back = piece;
        piece = null;
        if (back == null) {
          return;
        }
        if (!closed) {
          idle.computeIfAbsent(room, same -> new ArrayDeque<>()).add(back);
          return;
        }
      }
      back.free();
    }
  }

  /** Bytes of all pieces, in use or not. */
  synchronized long bytes() {
    return taken;
  }

  @Override
  public synchronized void close() {
    closed = true;
    idle.values().forEach(pieces -> pieces.forEach(MemoryPiece::free));
    idle.clear();
  }
}
