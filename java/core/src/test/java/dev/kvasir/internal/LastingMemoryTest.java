package dev.kvasir.internal;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.junit.jupiter.api.Test;

/** Memory that no JVM counts: what nobody reaches goes back all the same, and nothing else does. */
class LastingMemoryTest {

  @Test
  void whatIsForgottenGoesBackBeforeItIsManyTimesWhatIsKept() {
    ByteBuffer kept = LastingMemory.of(1 << 20).putInt(0, 7).slice(0, 4);
    long most = 0;
    for (int i = 0; i < 32; i++) {
      LastingMemory.of(1 << 29); // untouched, so that no memory stands behind it
      most = Math.max(most, LastingMemory.lasting());
    }
    assertTrue(most <= 4L << 30, most + " bytes were not given back");
    assertEquals(7, kept.order(ByteOrder.nativeOrder()).getInt(0));
  }
}
