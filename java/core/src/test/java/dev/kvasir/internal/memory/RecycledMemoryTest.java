package dev.kvasir.internal.memory;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvCache;
import dev.kvasir.Testing;
import dev.kvasir.error.KvException;
import dev.kvasir.file.BlockMemory;
import dev.kvasir.internal.MemoryPiece;
import dev.kvasir.method.Uniform;
import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.IntFunction;
import org.bytedeco.javacpp.BytePointer;
import org.junit.jupiter.api.Test;

/** Memory that is slow to get is used again, never while somebody can still look at it. */
class RecycledMemoryTest {

  private static final int ROOM = RecycledMemory.GRAIN;

  private final AtomicInteger made = new AtomicInteger();
  private final AtomicInteger freed = new AtomicInteger();

  /** Plain memory of native code, which is counted, and wiped when it goes. */
  private MemoryPiece piece(int bytes) {
    made.incrementAndGet();
    BytePointer memory = new BytePointer(bytes);
    return new MemoryPiece() {
      @Override
      public ByteBuffer view() {
        return memory.asByteBuffer();
      }

      @Override
      public void free() {
        freed.incrementAndGet();
        memory.deallocate();
      }
    };
  }

  private static ByteBuffer block(int seed, int bytes) {
    ByteBuffer block = ByteBuffer.allocate(bytes + 3);
    for (int i = 0; i < block.capacity(); i++) {
      block.put(i, (byte) (seed * 31 + i));
    }
    return block.position(1).limit(bytes + 1);
  }

  @Test
  void blocksAreCopiedAndAPieceIsUsedAgainOnceNobodyLooks() throws Exception {
    try (RecycledMemory memory = new RecycledMemory(this::piece, 1L << 40)) {
      List<ByteBuffer> looks = new ArrayList<>();
      for (int i = 0; i < 50; i++) {
        ByteBuffer held = memory.hold(block(i, ROOM - i));
        assertTrue(held.isDirect());
        assertEquals(block(i, ROOM - i), held);
        if (i % 10 == 0) {
          looks.add(held.slice(7, 1000).duplicate()); // the buffer itself is gone
        }
      }
      for (int i = 50; i < 500 && made.get() >= i; i++) {
        System.gc();
        Thread.sleep(10);
        memory.hold(block(i, ROOM));
      }
      assertTrue(made.get() < 500, "no piece was used again");
      for (int i = 0; i < looks.size(); i++) {
        assertEquals(block(10 * i, ROOM - 10 * i).slice().slice(7, 1000), looks.get(i), "still looked at");
      }
      assertEquals((long) made.get() * ROOM, memory.bytes());
    }
    for (int i = 0; i < 500 && freed.get() == 0; i++) { // pieces that nobody looks at any more
      System.gc();
      Thread.sleep(10);
    }
    assertTrue(freed.get() > 0, "no piece was freed");
  }

  @Test
  void whereThereIsNoneBlocksAreInPlainMemory() {
    List<ByteBuffer> held = new ArrayList<>();
    RecycledMemory memory = new RecycledMemory(this::piece, 2L * ROOM);
    for (int i = 0; i < 4; i++) {
      held.add(memory.hold(block(i, 100)));
    }
    assertEquals(2, made.get());
    RecycledMemory none = new RecycledMemory(bytes -> null, 1L << 40);
    held.add(none.hold(block(4, 100)));
    RecycledMemory failing =
        new RecycledMemory(
            bytes -> {
              throw new KvException(KvException.Code.OUT_OF_MEMORY, "none", null);
            },
            1L << 40);
    held.add(failing.hold(block(5, 100)));
    assertEquals(0, none.bytes() + failing.bytes());
    memory.close();
    held.add(memory.hold(block(6, 100)));
    assertEquals(2, made.get());
    for (int i = 0; i < held.size(); i++) {
      assertEquals(block(i, 100), held.get(i));
    }
    assertEquals(0, memory.hold(ByteBuffer.allocate(0)).remaining());
  }

  @Test
  void piecesAreNotLostWhereJavaHasNoMemory() {
    AtomicInteger failures = new AtomicInteger(2);
    IntFunction<MemoryPiece> tight =
        bytes -> {
          MemoryPiece piece = piece(bytes);
          return new MemoryPiece() {
            @Override
            public ByteBuffer view() {
              if (failures.getAndDecrement() > 0) {
                throw new OutOfMemoryError("as Java would");
              }
              return piece.view();
            }

            @Override
            public void free() {
              piece.free();
            }
          };
        };
    RecycledMemory memory = new RecycledMemory(tight, 1L << 40);
    for (int i = 0; i < 2; i++) {
      assertThrows(OutOfMemoryError.class, () -> memory.hold(block(1, 100)));
    }
    ByteBuffer held = memory.hold(block(2, 100));
    assertEquals(block(2, 100), held);
    assertEquals(1, made.get());
    RecycledMemory failing =
        new RecycledMemory(
            bytes -> {
              throw new OutOfMemoryError("as Java would");
            },
            1L << 40);
    assertThrows(OutOfMemoryError.class, () -> failing.hold(block(3, 100)));
    assertEquals(0, failing.bytes());
    Reference.reachabilityFence(held);
  }

  @Test
  void cachesOnACpuTakeAnyMemory() {
    ByteBuffer direct = ByteBuffer.allocateDirect(10).put(3, (byte) 7).position(3);
    try (KvCache cache = KvCache.builder(Testing.small()).backend("scalar").method(Uniform.bits(2)).build();
        BlockMemory memory = cache.blockMemory(1 << 20)) {
      ByteBuffer same = memory.hold(direct);
      direct.put(3, (byte) 8);
      assertEquals(8, same.get(0), "the buffer's own bytes");
      assertSame(BlockMemory.plain().getClass(), memory.getClass());
    }
  }
}
