package dev.kvasir.internal;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;

import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.error.KvException;
import dev.kvasir.error.NativeUnavailableException;
import dev.kvasir.error.NotFiniteException;
import dev.kvasir.internal.jni.Native;
import java.util.LinkedHashMap;
import java.util.Map;
import org.junit.jupiter.api.Test;

class NativeErrorsTest {

  @Test
  void everyCodeHasItsType() {
    NativeLibrary.get();
    Map<Integer, Class<?>> types = new LinkedHashMap<>();
    types.put(Native.kInvalidArgument, IllegalArgumentException.class);
    types.put(Native.kNotFinite, NotFiniteException.class);
    types.put(Native.kBudgetExceeded, BudgetExceededException.class);
    types.put(Native.kOutOfMemory, KvException.class);
    types.put(Native.kUnknownSequence, IllegalStateException.class);
    types.put(Native.kUnavailable, NativeUnavailableException.class);
    types.put(Native.kDeviceFailed, KvException.class);
    types.forEach(
        (code, type) -> {
          RuntimeException failure = new RuntimeException(Native.error_name(code) + ": layer 3: too much");
          RuntimeException translated = NativeErrors.translate(failure);
          assertSame(type, translated.getClass());
          assertEquals("layer 3: too much", translated.getMessage());
          assertSame(failure, translated.getCause());
        });
  }

  @Test
  void whatHasNoCodeIsInternal() {
    for (String message : new String[] {"std::bad_alloc", "something: else", null}) {
      KvException translated = (KvException) NativeErrors.translate(new RuntimeException(message));
      assertEquals(KvException.Code.INTERNAL, translated.code());
      assertEquals(String.valueOf(message), translated.getMessage());
    }
  }

  @Test
  void javaExceptionsPass() {
    IllegalStateException closed = new IllegalStateException("closed");
    assertSame(closed, NativeErrors.translate(closed));
  }
}
