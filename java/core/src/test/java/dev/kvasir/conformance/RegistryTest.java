package dev.kvasir.conformance;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.BackendInfo;
import dev.kvasir.CodecInfo;
import dev.kvasir.Kvasir;
import java.util.List;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;

/** The suite covers the registry: each codec has a reference, and each reference varies all of the codec's options. */
class RegistryTest {

  @Test
  void everyCodecHasAReference() {
    assertEquals(
        ReferenceCodecs.ALL.keySet(), Registry.plain().stream().map(CodecInfo::name).collect(Collectors.toSet()));
  }

  @Test
  void everyOptionIsVaried() {
    for (CodecInfo codec : Registry.plain()) {
      assertEquals(
          ReferenceCodecs.of(codec.name()).options(),
          codec.options().stream().map(CodecInfo.Option::name).collect(Collectors.toSet()),
          () -> "options of " + codec.name());
    }
  }

  @Test
  void everyCodecHasWidths() {
    for (CodecInfo codec : Kvasir.codecs()) {
      assertFalse(codec.bits().isEmpty(), codec.name());
      assertFalse(codec.summary().isEmpty(), codec.name());
    }
  }

  @Test
  void theScalarBackendIsLastAndAlwaysThere() {
    List<String> backends =
        Kvasir.backends().stream().filter(BackendInfo::available).map(BackendInfo::name).collect(Collectors.toList());
    assertEquals("scalar", backends.get(backends.size() - 1));
    assertTrue(backends.contains(Kvasir.defaultBackend()));
  }
}
