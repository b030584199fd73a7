package dev.kvasir.tensor;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvGeometry;
import dev.kvasir.calibrate.Profile;
import dev.kvasir.calibrate.ProfileException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.FileTime;
import java.nio.file.attribute.PosixFilePermissions;
import java.time.Duration;
import java.time.Instant;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What file systems can do to a file of tensors, and what a file can do to its reader. */
class FilesTest {

  @TempDir Path folder;

  private static Map<String, Tensor> tensors(float value) {
    return Map.of("x", Tensor.ofFloats(new float[] {value, 2, 3}, 3));
  }

  private static float first(Path file) throws IOException {
    try (Safetensors open = Safetensors.open(file)) {
      return open.read("x").toFloats()[0];
    }
  }

  private static List<String> names(Path folder) throws IOException {
    try (Stream<Path> files = Files.list(folder)) {
      return files.map(file -> file.getFileName().toString()).sorted().collect(Collectors.toList());
    }
  }

  private static boolean run(String... command) throws Exception {
    return new ProcessBuilder(command).start().waitFor() == 0;
  }

  @Test
  void namesMayBeAsLongAsTheFileSystemAllows() throws IOException {
    for (int length : new int[] {1, 233, 234, 255}) {
      Path file = folder.resolve("n".repeat(length));
      Safetensors.write(file, Map.of(), tensors(1));
      Safetensors.write(file, Map.of(), tensors(length));
      assertEquals(length, first(file));
    }
    assertEquals(4, names(folder).size());
  }

  @Test
  void aLinkStaysALink() throws IOException {
    Path real = Files.createDirectory(folder.resolve("real")).resolve("file");
    Path link = Files.createSymbolicLink(folder.resolve("link"), Path.of("hop"));
    Files.createSymbolicLink(folder.resolve("hop"), Path.of("real/file"));
    Safetensors.write(link, Map.of(), tensors(1)); // leads to a file that is not there yet
    Safetensors.write(link, Map.of(), tensors(7));
    assertTrue(Files.isSymbolicLink(link));
    assertEquals(7, first(real));
    assertEquals(List.of("hop", "link", "real"), names(folder));
    Path ring = Files.createSymbolicLink(folder.resolve("ring"), Path.of("ring"));
    assertThrows(IOException.class, () -> Safetensors.write(ring, Map.of(), tensors(1)));
  }

  @Test
  void permissionsStay() throws IOException {
    Path file = folder.resolve("file");
    Safetensors.write(file, Map.of(), tensors(1));
    for (String permissions : new String[] {"rw-------", "rw-rw-r--", "r--r-----"}) {
      Files.setPosixFilePermissions(file, PosixFilePermissions.fromString(permissions));
      Safetensors.write(file, Map.of(), tensors(2));
      assertEquals(permissions, PosixFilePermissions.toString(Files.getPosixFilePermissions(file)));
    }
  }

  @Test
  void whatIsNoFileIsRefusedAtOnce() throws Exception {
    Path pipe = folder.resolve("pipe");
    Assumptions.assumeTrue(run("mkfifo", pipe.toString()), "no mkfifo");
    assertTimeoutPreemptively(
        Duration.ofSeconds(20),
        () -> {
          assertThrows(SafetensorsException.class, () -> Safetensors.open(pipe));
          assertThrows(ProfileException.class, () -> Profile.load(pipe));
          assertThrows(IOException.class, () -> Safetensors.write(pipe, Map.of(), tensors(1)));
          assertThrows(SafetensorsException.class, () -> Safetensors.open(folder));
          assertThrows(IOException.class, () -> Safetensors.write(folder, Map.of(), tensors(1)));
        });
  }

  @Test
  void nullsLeaveAnOldFileAsItWas() throws IOException {
    Path file = folder.resolve("file");
    Safetensors.write(file, Map.of("a", "b"), tensors(5));
    byte[] before = Files.readAllBytes(file);
    Map<String, String> nullText = Collections.singletonMap("a", null);
    Map<String, Tensor> nullTensor = Collections.singletonMap("a", null);
    assertThrows(NullPointerException.class, () -> Safetensors.write(file, nullText, tensors(1)));
    assertThrows(
        NullPointerException.class, () -> Safetensors.write(file, Collections.singletonMap(null, "a"), tensors(1)));
    assertThrows(NullPointerException.class, () -> Safetensors.write(file, Map.of(), nullTensor));
    KvGeometry geometry = KvGeometry.builder().layers(1).queryHeads(2).kvHeads(2).headDim(32).build();
    assertThrows(NullPointerException.class, () -> Profile.builder(geometry).note("a", null));
    assertThrows(NullPointerException.class, () -> Profile.builder(geometry).tensor("a", null));
    assertArrayEquals(before, Files.readAllBytes(file));
    assertEquals(List.of("file"), names(folder));
  }

  /** An interrupt concerns the thread that it is for. */
  @Test
  void interruptedReadersDoNotCloseTheFileForOthers() throws Exception {
    Path file = folder.resolve("file");
    Safetensors.write(file, Map.of(), Map.of("x", Tensor.ofFloats(new float[1 << 20], 1 << 20)));
    AtomicInteger reads = new AtomicInteger();
    try (Safetensors open = Safetensors.open(file)) {
      Thread[] readers = new Thread[3];
      AtomicInteger failures = new AtomicInteger();
      for (int i = 0; i < readers.length; i++) {
        readers[i] =
            new Thread(
                () -> {
                  for (int round = 0; round < 20; round++) {
                    try {
                      open.read("x");
                      reads.incrementAndGet();
                    } catch (IOException e) {
                      failures.incrementAndGet();
                    }
                  }
                });
        readers[i].start();
      }
      while (readers[0].isAlive()) {
        readers[0].interrupt();
        Thread.sleep(1);
      }
      for (Thread reader : readers) {
        reader.join();
      }
      assertEquals(0, failures.get());
      assertEquals(60, reads.get());
      assertEquals(1 << 20, open.read("x").toFloats().length);
    }
  }

  @Test
  void filesOfKilledWritersAreRemovedAndThoseOfOthersNot() throws Exception {
    Path abandoned = Files.writeString(folder.resolve(".kvasir-1.tmp"), "part");
    Path young = Files.writeString(folder.resolve(".kvasir-2.tmp"), "part");
    Path locked = Files.writeString(folder.resolve(".kvasir-3.tmp"), "part");
    Path foreign = Files.writeString(folder.resolve("kvasir-4.tmp"), "mine");
    FileTime old = FileTime.from(Instant.now().minus(Duration.ofMinutes(5)));
    for (Path file : List.of(abandoned, locked, foreign)) {
      Files.setLastModifiedTime(file, old);
    }
    try (FileChannel channel = FileChannel.open(locked, StandardOpenOption.WRITE);
        FileLock lock = channel.lock()) {
      assertTrue(lock.isValid());
      Safetensors.write(folder.resolve("file"), Map.of(), tensors(1));
    }
    assertFalse(Files.exists(abandoned));
    assertTrue(Files.exists(young) && Files.exists(locked) && Files.exists(foreign));
  }

  @Test
  void aFullDiskLeavesTheOldFile() throws Exception {
    Path disk = Files.createDirectory(folder.resolve("disk"));
    Assumptions.assumeTrue(
        run("mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk.toString()), "no disk may be mounted here");
    try {
      Path file = disk.resolve("file");
      Safetensors.write(file, Map.of(), tensors(9));
      Map<String, Tensor> large = Map.of("x", Tensor.ofFloats(new float[1 << 17], 1 << 17));
      assertThrows(IOException.class, () -> Safetensors.write(file, Map.of(), large));
      assertEquals(9, first(file));
      assertEquals(List.of("file"), names(disk));
    } finally {
      assertTrue(run("umount", disk.toString()));
    }
  }

  @Test
  void messagesQuoteAFileBriefly() throws IOException {
    String much = "m".repeat(1 << 20);
    String dimensions = "1,".repeat(1 << 18) + "1";
    String[] headers = {
      "{\"" + much + "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}",
      "{\"a\":{\"dtype\":\"" + much + "\",\"shape\":[1],\"data_offsets\":[0,4]}}",
      "{\"a\":{\"dtype\":\"F32\",\"shape\":[" + dimensions + "],\"data_offsets\":[0,8]}}",
      "{\"a\":{\"dtype\":\"F32\",\"shape\":[" + dimensions + ",-1],\"data_offsets\":[0,8]}}",
      "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" + dimensions + "]}}",
      "{\"a\":{\"" + much + "\":1}}",
      "{\"__metadata__\":{\"" + much + "\":1}}",
      "{\"__metadata__\":{\"kvasir.format\":\"profile\",\"kvasir.version\":\"" + much + "\"}}",
      "{\"__metadata__\":{\"kvasir.format\":\"profile\",\"kvasir.version\":\"1\",\"kvasir.crc32c\":\"" + much + "\"}}",
    };
    for (String header : headers) {
      byte[] json = header.getBytes(StandardCharsets.UTF_8);
      ByteBuffer bytes = ByteBuffer.allocate(8 + json.length).order(ByteOrder.LITTLE_ENDIAN);
      bytes.putLong(json.length).put(json);
      Path file = Files.write(folder.resolve("file"), bytes.array());
      for (Throwable e = assertThrows(ProfileException.class, () -> Profile.load(file)); e != null; e = e.getCause()) {
        String message = String.valueOf(e.getMessage());
        assertTrue(message.length() < 2000, () -> message.length() + " characters: " + message.substring(0, 300));
      }
    }
  }
}
