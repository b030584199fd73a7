package dev.kvasir.error;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.Testing;
import dev.kvasir.calibrate.ProfileException;
import dev.kvasir.tensor.SafetensorsException;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Exceptions go to other processes with what they say. */
class SerializationTest {

  @SuppressWarnings("unchecked")
  private static <T> T copy(T object) throws Exception {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try (ObjectOutputStream out = new ObjectOutputStream(bytes)) {
      out.writeObject(object);
    }
    try (ObjectInputStream in = new ObjectInputStream(new ByteArrayInputStream(bytes.toByteArray()))) {
      return (T) in.readObject();
    }
  }

  @Test
  void allOfThem() throws Exception {
    for (Throwable each :
        List.of(
            new BudgetExceededException("bytes", 1, 2, 3, true, null),
            new KvException(KvException.Code.INTERNAL, "inside", null),
            new KvFileException(KvFileException.Reason.CHECKSUM, "bits", null),
            new NativeUnavailableException("library", null),
            new NotFiniteException("NaN", null),
            new ProfileException("profile", null),
            new SafetensorsException(Path.of("file"), "tensor", null))) {
      assertEquals(each.toString(), copy(each).toString());
    }
  }

  @Test
  void thePlaceOfAnElement() throws Exception {
    float[] rows = new float[64];
    rows[37] = Float.NaN;
    try (KvCache cache = Testing.cache(Testing.small()).build();
        KvSequence sequence = cache.newSequence()) {
      NotFiniteException thrown =
          assertThrows(NotFiniteException.class, () -> sequence.append(1, new float[64], rows, 1));
      NotFiniteException copy = copy(thrown);
      assertEquals("values", copy.input());
      assertEquals(1, copy.layer());
      assertEquals(1, copy.head());
      assertEquals(5, copy.channel());
    }
  }
}
