package dev.kvasir.tensor;

import static dev.kvasir.Testing.assertNames;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.Testing;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.io.UncheckedIOException;
import java.nio.BufferOverflowException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class SafetensorsTest {

  @TempDir Path folder;

  private Path file(String header, int dataBytes) throws IOException {
    return file(header.getBytes(StandardCharsets.UTF_8), dataBytes);
  }

  private Path file(byte[] header, int dataBytes) throws IOException {
    ByteBuffer bytes = ByteBuffer.allocate(8 + header.length + dataBytes).order(ByteOrder.LITTLE_ENDIAN);
    bytes.putLong(header.length).put(header);
    return Files.write(folder.resolve("crafted"), bytes.array());
  }

  private static String tensor(String name, String dtype, String shape, String offsets) {
    return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
  }

  private void assertInvalid(String header, int dataBytes, Object... named) throws IOException {
    Path path = file(header, dataBytes);
    Exception thrown = assertThrows(SafetensorsException.class, () -> Safetensors.open(path).close(), header);
    assertNames(thrown, named);
    assertNames(thrown, path);
  }

  @Test
  void writesAndReadsEveryType() throws IOException {
    Random random = Testing.random("writesAndReadsEveryType");
    Map<String, Tensor> tensors = new LinkedHashMap<>();
    for (TensorType type : TensorType.values()) {
      byte[] bytes = new byte[6 * type.bytes()];
      random.nextBytes(bytes);
      tensors.put("some " + type + " \"\u00e9\"\n", Tensor.ofBytes(type, bytes, 2, 3));
    }
    tensors.put("scalar", Tensor.ofInts(new int[] {7}));
    tensors.put("empty", Tensor.ofFloats(new float[0], 3, 0, 5));
    Map<String, String> metadata = Map.of("format", "pt", "quote", "\"\\\u20ac");
    Path path = folder.resolve("all.safetensors");
    Safetensors.write(path, metadata, tensors);
    try (Safetensors file = Safetensors.open(path)) {
      assertEquals(metadata, file.metadata());
      assertEquals(tensors.keySet(), file.entries().keySet());
      for (Map.Entry<String, Tensor> entry : tensors.entrySet()) {
        assertEquals(entry.getValue(), file.read(entry.getKey()));
        assertEquals(0, file.entries().get(entry.getKey()).offset() % entry.getValue().type().bytes());
      }
      assertNames(assertThrows(SafetensorsException.class, () -> file.read("other")), "other", path);
    }
    assertEquals(List.of(path), files());
  }

  @Test
  void bytesGoWhereABufferStands() throws IOException {
    Path path = folder.resolve("into.safetensors");
    Safetensors.write(path, Map.of(), Map.of("x", Tensor.ofFloats(new float[] {1, 2}, 2)));
    ByteBuffer into = ByteBuffer.allocateDirect(13).order(ByteOrder.LITTLE_ENDIAN).position(4);
    try (Safetensors file = Safetensors.open(path)) {
      file.read("x", into);
      assertEquals(12, into.position());
      assertEquals(1, into.getFloat(4));
      assertEquals(2, into.getFloat(8));
      assertThrows(BufferOverflowException.class, () -> file.read("x", into));
      assertEquals(12, into.position());
      assertNames(assertThrows(SafetensorsException.class, () -> file.read("y", into)), "\"y\"");
    }
  }

  @Test
  void convertsNumbers() {
    ByteBuffer halves = ByteBuffer.allocate(16).order(ByteOrder.LITTLE_ENDIAN);
    for (int bits : new int[] {0x0000, 0x8001, 0x3C00, 0xC500, 0x7BFF, 0x7C00, 0x0400, 0x3555}) {
      halves.putShort((short) bits);
    }
    float[] expected = {0, -0x1p-24f, 1, -5, 65504, Float.POSITIVE_INFINITY, 0x1p-14f, 0.333251953125f};
    assertArrayEquals(expected, Tensor.ofBytes(TensorType.F16, halves.array(), 8).toFloats());
    byte[] bfloat = {(byte) 0x80, 0x3F, 0x20, (byte) 0xC1};
    assertArrayEquals(new float[] {1, -10}, Tensor.ofBytes(TensorType.BF16, bfloat, 2).toFloats());
    assertArrayEquals(new double[] {1, -10}, Tensor.ofBytes(TensorType.BF16, bfloat, 2).toDoubles());
    byte[] ones = {-1, -1, -1, -1, -1, -1, -1, -1};
    assertArrayEquals(new int[] {-1}, Tensor.ofBytes(TensorType.I64, ones, 1).toInts());
    assertArrayEquals(new int[] {-1, -1}, Tensor.ofBytes(TensorType.I32, ones, 2).toInts());
    assertArrayEquals(new int[] {65535, 65535, 65535, 65535}, Tensor.ofBytes(TensorType.U16, ones, 4).toInts());
    assertArrayEquals(new float[] {4294967295f, 4294967295f}, Tensor.ofBytes(TensorType.U32, ones, 2).toFloats());
    assertEquals(255, Tensor.ofBytes(TensorType.U8, ones, 8).toInts()[7]);
    assertThrows(IllegalStateException.class, () -> Tensor.ofBytes(TensorType.U32, ones, 2).toInts());
    assertThrows(IllegalStateException.class, () -> Tensor.ofBytes(TensorType.U64, ones, 1).toFloats());
    assertThrows(IllegalStateException.class, () -> Tensor.ofBytes(TensorType.F8_E4M3, ones, 8).toFloats());
    assertThrows(IllegalStateException.class, () -> Tensor.ofFloats(new float[1], 1).toInts());
    assertThrows(IllegalArgumentException.class, () -> Tensor.ofFloats(new float[3], 2, 2));
    assertThrows(IllegalArgumentException.class, () -> Tensor.ofFloats(new float[1], -1, -1));
    assertThrows(IllegalArgumentException.class, () -> Tensor.ofFloats(new float[0], 1L << 40, 1L << 40));
    assertEquals(0, Tensor.ofFloats(new float[0], 1L << 40, 1L << 40, 0).elements());
  }

  @Test
  void readsCraftedFiles() throws IOException {
    String two = "{" + tensor("b", "F32", "[2]", "[4,12]") + "," + tensor("a", "U8", "[4]", "[0,4]") + "}   \n";
    try (Safetensors file = Safetensors.open(file(two, 12))) {
      assertEquals(List.of("a", "b"), List.copyOf(file.entries().keySet()));
      assertArrayEquals(new float[2], file.read("b").toFloats());
    }
    try (Safetensors file = Safetensors.open(file("{}", 0))) {
      assertTrue(file.entries().isEmpty());
    }
  }

  @Test
  void refusesHeadersThatAreNone() throws IOException {
    for (int size = 0; size < 8; size++) {
      Path path = Files.write(folder.resolve("short"), new byte[size]);
      assertNames(assertThrows(SafetensorsException.class, () -> Safetensors.open(path)), size);
    }
    for (long length : new long[] {1, 100, 100_000_001, Long.MAX_VALUE, -1, Long.MIN_VALUE}) {
      ByteBuffer bytes = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(0, length);
      Path path = Files.write(folder.resolve("long"), bytes.array());
      assertNames(
          assertThrows(SafetensorsException.class, () -> Safetensors.open(path)), Long.toUnsignedString(length));
    }
    assertInvalid("", 0);
    assertInvalid("[]", 0);
    assertInvalid("{\"a\":1}", 0, "\"a\"");
    assertInvalid("not json", 0);
    assertInvalid("[".repeat(100_000), 0);
    byte[] latin = ("{" + tensor("caf?", "U8", "[1]", "[0,1]") + "}").getBytes(StandardCharsets.UTF_8);
    latin[5] = (byte) 0xE9;
    Path path = file(latin, 1);
    assertNames(assertThrows(SafetensorsException.class, () -> Safetensors.open(path)), "UTF-8");
    assertThrows(IOException.class, () -> Safetensors.open(folder.resolve("missing")));
    assertThrows(IOException.class, () -> Safetensors.open(folder));
  }

  @Test
  void refusesAHeaderAboveTheLimit() throws IOException {
    // Sparse files: only their length is large.
    Path path = folder.resolve("sparse");
    for (long length : new long[] {Safetensors.MAX_HEADER_BYTES + 1, 1L << 40}) {
      try (RandomAccessFile file = new RandomAccessFile(path.toFile(), "rw")) {
        file.setLength(8 + Math.min(length, 1L << 33));
        file.write(ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(0, length).array());
      }
      assertNames(assertThrows(SafetensorsException.class, () -> Safetensors.open(path)), length);
    }
  }

  @Test
  void refusesTensorsThatMakeNoSense() throws IOException {
    assertInvalid("{" + tensor("a", "F31", "[1]", "[0,4]") + "}", 4, "F31");
    assertInvalid("{" + tensor("a", "f32", "[1]", "[0,4]") + "}", 4, "f32");
    assertInvalid("{" + tensor("a", "F32", "[2]", "[0,4]") + "}", 4, "\"a\"", 8);
    assertInvalid("{" + tensor("a", "F32", "[-1]", "[0,4]") + "}", 4, -1);
    assertInvalid("{" + tensor("a", "F32", "[4294967296,4294967296]", "[0,4]") + "}", 4, "4294967296");
    // 2^32 * 2^30 * 4 bytes wraps to 0 in 64 bits.
    assertInvalid("{" + tensor("a", "F32", "[4294967296,1073741824]", "[0,0]") + "}", 0, "4294967296");
    assertInvalid("{" + tensor("a", "F32", "[1.0]", "[0,4]") + "}", 4, "shape");
    assertInvalid("{" + tensor("a", "F32", "[1e0]", "[0,4]") + "}", 4, "shape");
    assertInvalid("{" + tensor("a", "F32", "[99999999999999999999]", "[0,4]") + "}", 4, "shape");
    assertInvalid("{" + tensor("a", "F32", "1", "[0,4]") + "}", 4, "shape");
    assertInvalid("{" + tensor("a", "F32", "[1]", "[0]") + "}", 4, "data_offsets");
    assertInvalid("{" + tensor("a", "F32", "[1]", "[0,4,8]") + "}", 4, "data_offsets");
    assertInvalid("{" + tensor("a", "F32", "[1]", "[4,0]") + "}", 4, "data_offsets");
    assertInvalid("{" + tensor("a", "F32", "[1]", "[-4,0]") + "}", 4, "data_offsets");
    long edge = Long.MAX_VALUE;
    assertInvalid("{" + tensor("a", "F32", "[1]", "[" + (edge - 4) + "," + edge + "]") + "}", 4, "data_offsets");
    assertInvalid("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "dtype", "data_offsets");
    assertInvalid(
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"more\":1}}", 4, "more");
    assertInvalid("{\"__metadata__\":{\"a\":1}}", 0, "__metadata__.a");
    assertInvalid("{\"__metadata__\":[]}", 0, "__metadata__");
  }

  @Test
  void refusesDataThatDoNotAddUp() throws IOException {
    String a = tensor("a", "F32", "[2]", "[0,8]");
    assertInvalid("{" + a + "}", 7, "\"a\"", "1 bytes after the end");
    assertInvalid("{" + a + "}", 0, "8 bytes after the end");
    assertInvalid("{" + a + "}", 9, "1 bytes at the end");
    assertInvalid("{}", 1, "1 bytes at the end");
    assertInvalid("{" + a + "," + a + "}", 8, "\"a\"", "second time");
    assertInvalid("{" + a + "," + tensor("b", "U8", "[8]", "[4,12]") + "}", 12, "\"b\"", "within another");
    assertInvalid("{" + a + "," + tensor("b", "U8", "[8]", "[0,8]") + "}", 8, "within another");
    assertInvalid("{" + a + "," + tensor("b", "U8", "[1]", "[9,10]") + "}", 10, "\"b\"", "hole");
    assertInvalid("{" + tensor("b", "U8", "[1]", "[1,2]") + "}", 2, "hole");
  }

  @Test
  void survivesRandomDamage() throws IOException {
    Random random = Testing.random("survivesRandomDamage");
    Path path = folder.resolve("good");
    Safetensors.write(
        path,
        Map.of("a", "b"),
        Map.of(
            "x", Tensor.ofFloats(new float[12], 3, 4),
            "y", Tensor.ofInts(new int[5], 5),
            "z", Tensor.ofInts(new int[1])));
    byte[] good = Files.readAllBytes(path);
    Path damaged = folder.resolve("damaged");
    for (int i = 0; i < 500; i++) {
      byte[] bytes = good.clone();
      for (int changes = 1 + random.nextInt(3); changes > 0; changes--) {
        bytes[random.nextInt(bytes.length)] = (byte) random.nextInt(256);
      }
      int length = random.nextInt(4) == 0 ? random.nextInt(bytes.length) : bytes.length;
      Files.write(damaged, Arrays.copyOf(bytes, length));
      // Either it is still a valid file, and then all of it can be read, or it is refused with the one exception.
      try (Safetensors file = Safetensors.open(damaged)) {
        for (String name : file.entries().keySet()) {
          file.read(name);
        }
      } catch (SafetensorsException expected) {
        assertNames(expected, damaged);
      }
    }
  }

  @Test
  void aFileCutShortWhileOpenIsAnException() throws IOException {
    Path path = folder.resolve("cut");
    Safetensors.write(path, Map.of(), Map.of("x", Tensor.ofFloats(new float[100], 100)));
    try (Safetensors file = Safetensors.open(path);
        RandomAccessFile writer = new RandomAccessFile(path.toFile(), "rw")) {
      writer.setLength(writer.length() - 1);
      assertNames(assertThrows(SafetensorsException.class, () -> file.read("x")), "\"x\"");
    }
  }

  @Test
  void aFailedWriteLeavesTheOldFileAndNothingElse() throws IOException {
    Path taken = Files.createDirectory(folder.resolve("taken"));
    Files.createFile(taken.resolve("content"));
    Map<String, Tensor> tensors = Map.of("x", Tensor.ofInts(new int[1]));
    assertThrows(IOException.class, () -> Safetensors.write(taken, Map.of(), tensors));
    assertEquals(List.of(taken), files());
    assertThrows(IOException.class, () -> Safetensors.write(folder.resolve("no/such"), Map.of(), tensors));
    assertThrows(
        IllegalArgumentException.class,
        () -> Safetensors.write(folder.resolve("new"), Map.of(), Map.of("__metadata__", tensors.get("x"))));
    assertEquals(List.of(taken), files());
  }

  @Test
  void readersSeeTheOldFileOrTheNewOne() throws Exception {
    Path path = folder.resolve("busy");
    Tensor[] contents = {Tensor.ofInts(new int[1000], 1000), Tensor.ofInts(new int[] {1, 1, 1}, 3)};
    Safetensors.write(path, Map.of("n", "0"), Map.of("x", contents[0]));
    AtomicBoolean done = new AtomicBoolean();
    Thread writer =
        new Thread(
            () -> {
              try {
                for (int i = 1; i <= 100; i++) {
                  Safetensors.write(path, Map.of("n", "" + i % 2), Map.of("x", contents[i % 2]));
                }
              } catch (IOException e) {
                throw new UncheckedIOException(e);
              } finally {
                done.set(true);
              }
            });
    writer.start();
    int reads = 0;
    while (!done.get() || reads == 0) {
      try (Safetensors file = Safetensors.open(path)) {
        assertEquals(contents[Integer.parseInt(file.metadata().get("n"))], file.read("x"));
      }
      reads++;
    }
    writer.join();
    assertEquals(List.of(path), files());
  }

  private List<Path> files() throws IOException {
    try (Stream<Path> list = Files.list(folder)) {
      return list.collect(Collectors.toList());
    }
  }
}
