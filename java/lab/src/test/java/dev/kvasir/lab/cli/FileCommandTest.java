package dev.kvasir.lab.cli;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.github.luben.zstd.Zstd;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Stream;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Saved sequences on the command line, compressed and back. */
class FileCommandTest {

  @TempDir Path folder;
  private Path saved;

  @BeforeEach
  void findGoldenFile() throws Exception {
    saved = folder.resolve("uniform.kv");
    try (InputStream in = getClass().getResourceAsStream("/golden-sequences/uniform.kv")) {
      Files.write(saved, in.readAllBytes());
    }
  }

  @Test
  void compressedFilesComeBackAsTheyWere() throws Exception {
    Path packed = folder.resolve("packed.kv.zst"), back = folder.resolve("back.kv");
    assertTrue(run(0, "convert", "" + saved, "" + packed, "--compress").contains(" % of " + Files.size(saved)));
    assertTrue(Files.size(packed) < Files.size(saved));
    run(0, "convert", "" + packed, "" + back);
    assertArrayEquals(Files.readAllBytes(saved), Files.readAllBytes(back));
  }

  @Test
  void damagedOnesAreRefusedAndLeaveNothing() throws Exception {
    Path packed = folder.resolve("packed.kv.zst"), back = folder.resolve("back.kv");
    run(0, "convert", "" + saved, "" + packed, "--compress");
    byte[] bytes = Files.readAllBytes(packed);
    bytes[bytes.length / 2] ^= 16;
    Files.write(packed, bytes);
    run(1, "convert", "" + packed, "" + back);
    assertFalse(Files.exists(back));
    byte[] whole = Files.readAllBytes(saved);
    whole[whole.length / 2] ^= 16;
    Files.write(saved, whole);
    run(1, "convert", "" + saved, "" + back, "--compress");
    assertFalse(Files.exists(back));
  }

  @Test
  void whatWasThereStaysUntilTheNewFileIsChecked() throws Exception {
    Path packed = folder.resolve("packed.kv.zst"), target = folder.resolve("target.kv");
    byte[] junk = new byte[5000];
    Files.write(packed, Zstd.compress(junk));
    Files.copy(saved, target);
    run(1, "convert", "" + packed, "" + target);
    assertArrayEquals(Files.readAllBytes(saved), Files.readAllBytes(target));
    try (Stream<Path> files = Files.list(folder)) {
      assertEquals(3, files.count(), "temporary files stay");
    }
  }

  /** Nobody would look for it, and it is as large as what it was unpacked from. */
  @Test
  @Timeout(60)
  void aConversionThatIsStoppedLeavesNothing() throws Exception {
    Path pipe = folder.resolve("packed.kv.zst"), target = folder.resolve("out").resolve("target.kv");
    Files.createDirectory(target.getParent());
    Assumptions.assumeTrue(new ProcessBuilder("mkfifo", "" + pipe).start().waitFor() == 0, "no mkfifo");
    Process program =
        new ProcessBuilder(
                System.getProperty("java.home") + "/bin/java",
                "-cp",
                System.getProperty("java.class.path"),
                Main.class.getName(),
                "file",
                "convert",
                "" + pipe,
                "" + target)
            .redirectErrorStream(true)
            .redirectOutput(ProcessBuilder.Redirect.DISCARD)
            .start();
    try {
      // It looks at the first bytes, opens the pipe again, and waits for the others.
      Files.write(pipe, Arrays.copyOf(Zstd.compress(new byte[10]), 4));
      while (list(target.getParent()).isEmpty()) {
        assertTrue(program.isAlive());
        Thread.sleep(20);
      }
      program.destroy();
      program.waitFor();
    } finally {
      program.destroyForcibly();
    }
    // What begins with a dot is removed by whoever writes there next.
    assertEquals(List.of(), list(target.getParent()).stream().filter(name -> !name.startsWith(".")).toList());
  }

  private static List<String> list(Path folder) throws IOException {
    try (Stream<Path> files = Files.list(folder)) {
      return files.map(file -> "" + file.getFileName()).toList();
    }
  }

  @Test
  void compressedFilesAreNotCompressedAgain() throws Exception {
    Path packed = folder.resolve("packed.kv.zst"), twice = folder.resolve("twice.kv.zst");
    run(0, "convert", "" + saved, "" + packed, "--compress");
    assertTrue(run(2, "convert", "" + packed, "" + twice, "--compress").contains("compressed already"));
    assertFalse(Files.exists(twice));
  }

  private static String run(int code, String... args) {
    String[] all = new String[args.length + 1];
    all[0] = "file";
    System.arraycopy(args, 0, all, 1, args.length);
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    int found = Main.run(all, new PrintStream(out), new AtomicBoolean());
    String said = out.toString(StandardCharsets.UTF_8);
    assertEquals(code, found, said);
    return said;
  }
}
