package dev.kvasir;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.error.NotFiniteException;
import dev.kvasir.file.KvFile;
import dev.kvasir.method.Uniform;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** A JVM hands its user's locale on to native code, where numbers then have commas for points. */
class OtherLocaleTest {

  @TempDir Path folder;

  @Test
  void filesAndErrorsAreTheSameInAnyLocale() throws Exception {
    Path german = folder.resolve("de_DE.UTF-8");
    Assumptions.assumeTrue(made(german), "no localedef, or none of its sources");
    Path here = folder.resolve("here.kv");
    Path there = folder.resolve("there.kv");
    save(here);
    ChildJvm.Outcome said =
        new ChildJvm()
            .withLibrary()
            .under("export LOCPATH=" + folder + " LC_ALL=de_DE.UTF-8")
            .run(OtherLocaleTest.class, "" + here, "" + there);
    assertEquals(0, said.status(), said.output());
    assertEquals(KvFile.verify(here).fingerprint(), KvFile.verify(there).fingerprint());
    try (KvCache cache = cache(); KvSequence again = cache.restore(there)) {
      assertEquals(300, again.length());
    }
  }

  private static boolean made(Path locale) throws InterruptedException {
    try {
      return new ProcessBuilder("localedef", "-i", "de_DE", "-f", "UTF-8", "" + locale)
              .redirectErrorStream(true)
              .redirectOutput(ProcessBuilder.Redirect.DISCARD)
              .start()
              .waitFor()
          == 0;
    } catch (IOException e) {
      return false;
    }
  }

  /** There: reads what was saved here, saves the same, and makes an error with a number. */
  public static void main(String[] args) throws Exception {
    try (KvCache cache = cache(); KvSequence sequence = cache.restore(Path.of(args[0]))) {
      assertEquals(300, sequence.length());
      float[] rows = new float[cache.geometry().rowSize(0)];
      rows[3] = 40_000.5f;
      NotFiniteException e = assertThrows(NotFiniteException.class, () -> sequence.append(0, rows, rows, 1));
      assertEquals(40_000.5f, e.value());
      assertTrue(e.getMessage().contains("40000.5"), e.getMessage());
    }
    save(Path.of(args[1]));
    assertTrue(Files.exists(Path.of(args[1])));
  }

  private static KvCache cache() {
    KvGeometry geometry = KvGeometry.builder().layers(1).queryHeads(4).kvHeads(2).headDim(64).build();
    return KvCache.builder(geometry).method(Uniform.bits(2)).build();
  }

  private static void save(Path file) throws IOException {
    try (KvCache cache = cache(); KvSequence sequence = cache.newSequence()) {
      float[] rows = new float[300 * cache.geometry().rowSize(0)];
      sequence.append(0, rows, rows, 300);
      sequence.save(file);
    }
  }
}
