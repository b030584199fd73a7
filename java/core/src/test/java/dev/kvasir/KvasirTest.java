package dev.kvasir;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

@Tag("jnicheck")
class KvasirTest {

  @Test
  void saysWhereItCameFrom() {
    Kvasir.LoadReport report = Kvasir.load();
    assertTrue(Files.exists(report.library()));
    assertFalse(report.classifier().isEmpty());
    assertEquals(Kvasir.defaultBackend(), report.defaultBackend());
    assertEquals(report, Kvasir.load());
  }

  @Test
  void hasAVersion() {
    assertTrue(Kvasir.version().matches("\\d+\\.\\d+\\.\\d+.*"), Kvasir.version());
  }

  @Test
  void backendsEndWithScalar() {
    List<BackendInfo> backends = Kvasir.backends();
    BackendInfo last = backends.get(backends.size() - 1);
    assertEquals("scalar", last.name());
    assertTrue(last.available());
    assertTrue(backends.stream().anyMatch(b -> b.available() && b.name().equals(Kvasir.defaultBackend())));
    assertTrue(backends.stream().noneMatch(b -> b.summary().isEmpty()));
  }

  @Test
  void codecsAreWhatTheMethodsNeed() {
    List<CodecInfo> codecs = Kvasir.codecs();
    CodecInfo f16 = codecs.stream().filter(c -> c.name().equals("f16")).findAny().orElseThrow();
    assertEquals(Set.of(16), f16.bits());
    CodecInfo uniform = codecs.stream().filter(c -> c.name().equals("uniform")).findAny().orElseThrow();
    assertEquals(Set.of(1, 2, 3, 4, 8, 16), uniform.bits());
    assertEquals(
        Set.of("axis", "group", "grid"),
        uniform.options().stream().map(CodecInfo.Option::name).collect(Collectors.toSet()));
  }

  @Test
  void threadsCanBeSet() {
    int threads = Kvasir.threads();
    assertTrue(threads >= 1);
    try {
      Kvasir.setThreads(3);
      assertEquals(3, Kvasir.threads());
      for (int wrong : new int[] {0, -1, 1025, Integer.MAX_VALUE}) {
        Testing.assertNames(assertThrows(IllegalArgumentException.class, () -> Kvasir.setThreads(wrong)), wrong);
      }
      assertEquals(3, Kvasir.threads());
    } finally {
      Kvasir.setThreads(threads);
    }
  }
}
