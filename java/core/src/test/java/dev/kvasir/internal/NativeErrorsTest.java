package dev.kvasir.internal;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

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
          // What a budget refuses goes on with how to repair a step.
          assertTrue(translated.getMessage().matches("layer 3: too much(\\. If other layers .*)?"));
          assertSame(failure, translated.getCause());
        });
  }

  @Test
  void whatHasNoCodeIsInternal() {
    for (String message : new String[] {"something: else", "no code", null}) {
      KvException translated = (KvException) NativeErrors.translate(new RuntimeException(message));
      assertEquals(KvException.Code.INTERNAL, translated.code());
      assertEquals(String.valueOf(message), translated.getMessage());
    }
  }

  @Test
  void memoryThatIsRefusedIsNoBug() {
    KvException translated = (KvException) NativeErrors.translate(new RuntimeException("std::bad_alloc"));
    assertEquals(KvException.Code.OUT_OF_MEMORY, translated.code());
  }

  @Test
  void numbersArrive() {
    BudgetExceededException budget =
        (BudgetExceededException)
            NativeErrors.translate(
                new RuntimeException("budget_exceeded[layer=3 needed=70000000000 left=-5 own=1]: [layer=9]: no"));
    assertEquals(3, budget.layer());
    assertEquals(70_000_000_000L, budget.bytesNeeded());
    assertEquals(-5, budget.bytesLeft());
    assertTrue(budget.isLayerBudget());
    assertTrue(budget.getMessage().startsWith("[layer=9]: no"));
    NotFiniteException place =
        (NotFiniteException)
            NativeErrors.translate(
                new RuntimeException("not_finite[token=4 channel=5 value=-Infinity]: -Infinity at token 4"));
    assertEquals(4, place.token());
    assertEquals(5, place.channel());
    assertEquals(Float.NEGATIVE_INFINITY, place.value());
    assertEquals(-1, place.layer());
    assertEquals(-1, place.head());
    assertEquals("", place.input());
  }

  @Test
  void javaExceptionsPass() {
    IllegalStateException closed = new IllegalStateException("closed");
    assertSame(closed, NativeErrors.translate(closed));
  }
}
