package dev.kvasir.internal;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class LifetimeTest {

  private final Object owner = new Object();
  private final AtomicInteger destroyed = new AtomicInteger();
  private final Lifetime life = new Lifetime(owner, "the thing", destroyed::incrementAndGet);

  @Test
  void closeDestroysOnce() {
    assertFalse(life.isClosed());
    life.close();
    life.close();
    assertTrue(life.isClosed());
    assertEquals(1, destroyed.get());
  }

  @Test
  void usesOverlap() {
    life.acquire();
    life.acquire();
    life.release();
    life.release();
    assertEquals(0, destroyed.get());
  }

  @Test
  void theLastUseDestroys() {
    life.acquire();
    life.acquire();
    life.close();
    assertEquals(0, destroyed.get());
    life.release();
    assertEquals(0, destroyed.get());
    life.release();
    assertEquals(1, destroyed.get());
  }

  @Test
  void nothingBeginsAfterTheEnd() {
    life.requireOpen();
    life.acquire();
    life.close();
    assertFalse(life.tryAcquire());
    assertEquals("the thing is closed", assertThrows(IllegalStateException.class, life::acquire).getMessage());
    assertThrows(IllegalStateException.class, life::requireOpen);
    life.release();
    assertEquals(1, destroyed.get());
  }

  @Test
  void aForgottenOwnerIsAnEnd() throws InterruptedException {
    AtomicInteger ends = new AtomicInteger();
    Lifetime orphan = new Lifetime(new Object(), "an orphan", ends::incrementAndGet);
    for (int i = 0; i < 200 && ends.get() == 0; i++) {
      System.gc();
      Thread.sleep(10);
    }
    assertEquals(1, ends.get());
    assertTrue(orphan.isClosed());
  }

  @Test
  void noUseSeesADestroyedThing() throws InterruptedException {
    for (int round = 0; round < 200; round++) {
      AtomicBoolean alive = new AtomicBoolean(true);
      AtomicBoolean violated = new AtomicBoolean();
      Lifetime contested = new Lifetime(owner, "contested", () -> alive.set(false));
      CountDownLatch started = new CountDownLatch(3);
      List<Thread> threads = new ArrayList<>();
      for (int i = 0; i < 3; i++) {
        threads.add(
            new Thread(
                () -> {
                  started.countDown();
                  while (contested.tryAcquire()) {
                    if (!alive.get()) {
                      violated.set(true);
                    }
                    contested.release();
                  }
                }));
      }
      threads.forEach(Thread::start);
      started.await();
      contested.close();
      for (Thread thread : threads) {
        thread.join();
      }
      assertFalse(alive.get());
      assertFalse(violated.get());
    }
  }
}
