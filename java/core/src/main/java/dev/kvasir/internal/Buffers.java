package dev.kvasir.internal;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.ShortBuffer;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Whether native code may use the memory of a buffer in place. Since JDK 22 that memory may belong to an Arena, which
 * frees it while the buffer lives on:
 *
 * <ul>
 *   <li>Memory that is gone, or that another thread keeps to itself, shows by an access through the buffer, which
 *       throws. All direct buffers are asked.
 *   <li>An Arena that is shared by threads may be closed by one of them during a call. Nothing that Java offers to
 *       native code can hold it, so its buffers are copied, by Java, which either finishes or throws.
 *   <li>All others stay: those of {@code allocateDirect} and of automatic Arenas as long as the buffer is reachable,
 *       those of a confined one because the thread that could close it is in the call.
 * </ul>
 */
final class Buffers {

  /** {@code MemorySegment.ofBuffer(Buffer).scope()}; null before JDK 22, where there are no such buffers. */
  private static final @Nullable MethodHandle SCOPE_OF = scopeOf();
  /** Names of scopes that nobody else can end. What is not known is taken to be shared. */
  private static final List<String> LASTING = List.of("GlobalSession", "ImplicitSession", "ConfinedSession");

  private static final ClassValue<Boolean> LASTS =
      new ClassValue<>() {
        @Override
        protected Boolean computeValue(Class<?> type) {
          return LASTING.stream().anyMatch(type.getName()::contains);
        }
      };

  private Buffers() {}

  /**
   * Whether the buffer is direct and its memory stays during a call. Throws IllegalStateException where it is gone, or
   * belongs to another thread.
   */
  static boolean inPlace(Buffer buffer) {
    if (!buffer.isDirect()) {
      return false;
    }
    if (buffer.hasRemaining()) {
      try {
        touch(buffer);
      } catch (RuntimeException e) {
        throw gone(e);
      }
    }
    return lasts(buffer);
  }

  private static void touch(Buffer buffer) {
    if (buffer instanceof FloatBuffer floats) {
      floats.get(0);
    } else if (buffer instanceof ShortBuffer shorts) {
      shorts.get(0);
    } else {
      ((ByteBuffer) buffer).get(0);
    }
  }

  private static IllegalStateException gone(RuntimeException e) {
    return new IllegalStateException("the memory of a buffer cannot be used here: " + e.getMessage(), e);
  }

  private static boolean lasts(Buffer buffer) {
    if (SCOPE_OF == null) {
      return true;
    }
    try {
      return LASTS.get(((Object) SCOPE_OF.invokeExact(buffer)).getClass());
    } catch (Throwable e) {
      return false;
    }
  }

  private static @Nullable MethodHandle scopeOf() {
    if (Runtime.version().feature() < 22) {
      return null;
    }
    try {
      Class<?> segment = Class.forName("java.lang.foreign.MemorySegment");
      Class<?> scope = Class.forName("java.lang.foreign.MemorySegment$Scope");
      MethodHandles.Lookup lookup = MethodHandles.publicLookup();
      MethodHandle ofBuffer = lookup.findStatic(segment, "ofBuffer", MethodType.methodType(segment, Buffer.class));
      MethodHandle of = lookup.findVirtual(segment, "scope", MethodType.methodType(scope));
      return MethodHandles.filterReturnValue(ofBuffer, of).asType(MethodType.methodType(Object.class, Buffer.class));
    } catch (ReflectiveOperationException e) {
      throw new AssertionError("JDK 22 has java.lang.foreign", e);
    }
  }
}
