package dev.kvasir;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.error.KvException;
import dev.kvasir.error.NativeUnavailableException;
import dev.kvasir.error.NotFiniteException;
import java.util.Optional;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Each native error code, provoked. There is more on arguments in ArgumentTest and on budgets in BudgetTest. */
@Tag("jnicheck")
class ErrorCodeTest {

  private final float[] row = new float[64];

  @Test
  void invalidArgument() {
    KvMethod unknown = new AnyMethod(CodecChoice.of("zip", 4), 0, 0);
    assertThrows(IllegalArgumentException.class, () -> KvCache.builder(Testing.small()).method(unknown).build());
  }

  @Test
  void notFinite() {
    try (KvCache cache = Testing.cache(Testing.small()).build();
        KvSequence sequence = cache.newSequence()) {
      float[] bad = row.clone();
      bad[5] = Float.NaN;
      NotFiniteException e = assertThrows(NotFiniteException.class, () -> sequence.append(1, row, bad, 1));
      Testing.assertNames(e, "values");
      assertEquals("values", e.input());
      assertEquals(1, e.layer());
      assertEquals(0, e.token());
      assertEquals(0, e.head());
      assertEquals(5, e.channel());
      assertEquals(Float.NaN, e.value());
      bad[5] = 0;
      bad[40] = 40000;
      NotFiniteException large = assertThrows(NotFiniteException.class, () -> sequence.append(0, bad, row, 1));
      assertEquals("keys", large.input());
      assertEquals(1, large.head());
      assertEquals(8, large.channel());
      assertEquals(40000, large.value());
      Testing.assertNames(large, "40000", "float16", 32752);
    }
  }

  @Test
  void budgetExceeded() {
    try (KvCache cache = Testing.cache(Testing.small()).budgetBytes(1000).build();
        KvSequence sequence = cache.newSequence()) {
      BudgetExceededException e =
          assertThrows(BudgetExceededException.class, () -> sequence.append(0, row, row, 1));
      assertEquals(KvException.Code.BUDGET_EXCEEDED, e.code());
      Testing.assertNames(e, 1000, "rollback()");
      assertEquals(0, e.layer());
      assertEquals(1000, e.bytesLeft());
      assertTrue(e.bytesNeeded() > 1000);
      assertFalse(e.isLayerBudget());
    }
    try (KvCache cache = Testing.cache(Testing.small()).layerBudgetBytes(1, 1000).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, row, row, 1);
      BudgetExceededException e =
          assertThrows(BudgetExceededException.class, () -> sequence.append(1, row, row, 1));
      assertEquals(1, e.layer());
      assertTrue(e.isLayerBudget());
      // What the message advises.
      assertEquals(1, sequence.length(0));
      assertEquals(0, sequence.rollback());
      assertEquals(0, sequence.length(0));
    }
  }

  @Test
  void unknownSequence() {
    try (KvCache cache = Testing.cache(Testing.small()).build()) {
      KvSequence forged = new KvSequence(cache, made -> made[0] = 12345);
      Testing.assertNames(assertThrows(IllegalStateException.class, () -> forged.append(0, row, row, 1)), 12345);
    }
  }

  @Test
  void unavailable() {
    Optional<BackendInfo> absent = Kvasir.backends().stream().filter(backend -> !backend.available()).findAny();
    Assumptions.assumeTrue(absent.isPresent(), "this machine has every backend of the build");
    NativeUnavailableException e =
        assertThrows(
            NativeUnavailableException.class,
            () -> KvCache.builder(Testing.small()).backend(absent.get().name()).build());
    assertEquals(KvException.Code.UNAVAILABLE, e.code());
    Testing.assertNames(e, absent.get().name());
  }
}
