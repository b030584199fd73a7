package dev.kvasir;

import static dev.kvasir.Testing.assertNames;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.calibrate.KeyScaling;
import dev.kvasir.codebook.CommVqCodebooks;
import dev.kvasir.method.CommVq;
import dev.kvasir.method.MixKvq;
import dev.kvasir.method.PmKvq;
import dev.kvasir.method.Uniform;
import dev.kvasir.rope.Rope;
import dev.kvasir.rope.RopePairs;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** What a method needs is checked when a cache is built, or said once where nobody can check it. */
class NeedsTest {

  private static final KvGeometry GEOMETRY = Testing.small();
  private static final Logger LOGGER = Logger.getLogger("dev.kvasir");

  private final List<String> warnings = new ArrayList<>();
  private final Handler handler =
      new Handler() {
        @Override
        public void publish(LogRecord entry) {
          warnings.add(entry.getMessage());
        }

        @Override
        public void flush() {}

        @Override
        public void close() {}
      };

  @BeforeEach
  void listen() {
    Kvasir.defaultBackend(); // loading the library may have a warning of its own
    LOGGER.addHandler(handler);
  }

  @AfterEach
  void leave() {
    LOGGER.removeHandler(handler);
  }

  private KvCache build(KvMethod method) {
    return Testing.cache(GEOMETRY).method(method).build();
  }

  private void assertWarned(String... parts) {
    assertEquals(1, warnings.size(), warnings::toString);
    for (String part : parts) {
      assertTrue(warnings.get(0).contains(part), warnings::toString);
    }
  }

  private static CommVq beforeRope() {
    return CommVq.of(CommVqCodebooks.builder(GEOMETRY).build(), Rope.plain(RopePairs.HALVES, 10_000, 32));
  }

  @Test
  void keysPerTokenWithoutScaling() {
    try (KvCache cache = build(PmKvq.paper(2))) {
      assertWarned("pm-16to2", "not scaled", "layer 0", "KeyScaling");
    }
    warnings.clear();
    float[] ones = new float[GEOMETRY.rowSize(0)];
    Arrays.fill(ones, 1);
    KeyScaling scaling = KeyScaling.of(GEOMETRY, RopePairs.HALVES, List.of(ones, ones));
    try (KvCache scaled = build(scaling.applyTo(PmKvq.paper(2)));
        KvCache perChannel = build(PmKvq.floor(2))) {
      assertEquals(List.of(), warnings);
    }
  }

  @Test
  void pagesSealedBeforeAnyQuery() {
    MixKvq method = MixKvq.budget(3);
    float[] rows = Testing.gaussian(new java.util.Random(1), 200 * GEOMETRY.rowSize(0));
    try (KvCache cache = build(method);
        KvSequence sequence = cache.newSequence()) {
      int open = method.sinks() + KvCache.PAGE_TOKENS - 1;
      sequence.append(0, rows, rows, open);
      assertEquals(List.of(), warnings);
      sequence.append(0, rows, rows, 1); // seals the first page
      assertWarned("mix-k3.0v2", "observe");
      sequence.append(1, rows, rows, 200);
      assertEquals(1, warnings.size(), "once for each cache");
    }
    warnings.clear();
    float[] query = new float[GEOMETRY.querySize(0)];
    try (KvCache cache = build(method);
        KvSequence sequence = cache.newSequence()) {
      sequence.observe(0, query, 1);
      sequence.append(0, rows, rows, 200);
    }
    try (KvCache cache = build(method.queryAware(false));
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, rows, rows, 200);
    }
    assertEquals(List.of(), warnings);
  }

  @Test
  void theSideOfRope() {
    try (KvCache cache = build(beforeRope())) {
      assertWarned("before RoPE", "keysBeforeRope(true)");
    }
    warnings.clear();
    Testing.cache(GEOMETRY).method(beforeRope()).keysBeforeRope(true).build().close();
    Testing.cache(GEOMETRY).method(Uniform.bits(2)).keysBeforeRope(false).build().close();
    build(Uniform.bits(2)).close();
    assertEquals(List.of(), warnings);
    assertNames(
        assertThrows(
            IllegalArgumentException.class,
            () -> Testing.cache(GEOMETRY).method(beforeRope()).keysBeforeRope(false).build().close()),
        "after RoPE", "before it", "commvq");
    assertNames(
        assertThrows(
            IllegalArgumentException.class,
            () -> Testing.cache(GEOMETRY).method(Uniform.bits(2)).keysBeforeRope(true).build().close()),
        "before RoPE", "after it", "uniform-k2v2");
  }
}
