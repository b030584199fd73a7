package dev.kvasir;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.error.KvException;
import dev.kvasir.error.NativeUnavailableException;
import dev.kvasir.method.Uniform;
import java.util.List;
import org.bytedeco.javacpp.FloatPointer;
import org.junit.jupiter.api.Test;

/** What can be known of a device's memory without looking at it. */
class DeviceBufferTest {

  private static final KvGeometry GEOMETRY =
      KvGeometry.builder().layers(1).queryHeads(4).kvHeads(2).headDim(64).build();

  private static final DeviceBuffer ROWS = new DeviceBuffer(0x1000, ElementType.FLOAT16, 2 * 64);

  @Test
  void addressesAreChecked() {
    assertThrows(IllegalArgumentException.class, () -> new DeviceBuffer(0, ElementType.FLOAT32, 1));
    assertThrows(IllegalArgumentException.class, () -> new DeviceBuffer(0x1008, ElementType.FLOAT32, 1));
    assertThrows(IllegalArgumentException.class, () -> new DeviceBuffer(0x1000, ElementType.FLOAT32, -1));
    assertThrows(NullPointerException.class, () -> new DeviceBuffer(0x1000, null, 1));
  }

  @Test
  void pointersCountFromTheirPosition() {
    try (FloatPointer pointer = new FloatPointer(64)) {
      DeviceBuffer buffer = DeviceBuffer.of(pointer, ElementType.FLOAT32, 64);
      assertEquals(pointer.address(), buffer.address());
      assertEquals(
          pointer.address() + 16 * Float.BYTES,
          DeviceBuffer.of(pointer.getPointer(16), ElementType.FLOAT32, 48).address());
    }
  }

  @Test
  void shortBuffersAndMixedTypesAreRefused() {
    try (KvCache cache = KvCache.builder(GEOMETRY).method(Uniform.bits(2)).build();
        KvSequence sequence = cache.newSequence()) {
      DeviceBuffer floats = new DeviceBuffer(0x1000, ElementType.FLOAT32, 2 * 64);
      assertThrows(
          IllegalArgumentException.class, () -> sequence.append(0, ROWS, ROWS, 2, DeviceStream.DEFAULT));
      assertThrows(
          IllegalArgumentException.class, () -> sequence.append(0, ROWS, floats, 1, DeviceStream.DEFAULT));
      assertThrows(
          IllegalArgumentException.class, () -> sequence.attend(0, ROWS, ROWS, DeviceStream.DEFAULT));
      assertEquals(0, sequence.length(0));
    }
  }

  @Test
  void cachesOfThisMachineHaveNoDevice() {
    String host =
        Kvasir.backends().stream()
            .filter(backend -> backend.available() && !backend.name().equals("cuda"))
            .findFirst()
            .orElseThrow()
            .name();
    try (KvCache cache = KvCache.builder(GEOMETRY).method(Uniform.bits(2)).backend(host).build();
        KvSequence sequence = cache.newSequence()) {
      KvException refused =
          assertThrows(
              NativeUnavailableException.class, () -> sequence.append(0, ROWS, ROWS, 1, DeviceStream.DEFAULT));
      assertTrue(refused.getMessage().contains(host), refused.getMessage());
      assertThrows(
          NativeUnavailableException.class, () -> cache.extend(List.of(sequence), DeviceStream.DEFAULT));
      assertEquals(0, sequence.length());
      sequence.append(0, new float[2 * 64], new float[2 * 64], 1);
      DeviceBuffer queries = new DeviceBuffer(0x1000, ElementType.FLOAT16, 4 * 64);
      assertThrows(
          NativeUnavailableException.class, () -> sequence.attend(0, queries, queries, DeviceStream.DEFAULT));
    }
  }
}
