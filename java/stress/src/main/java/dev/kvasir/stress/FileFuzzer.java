package dev.kvasir.stress;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Random;

/** Damages good files, and reads them: they are read or refused, in bounded time and memory. */
final class FileFuzzer {

  private static final long SLOW_NANOS = 20_000_000_000L;

  private final Path folder;
  private final List<FileKind> kinds;
  private final Random random;
  private long read;
  private long refused;

  FileFuzzer(Path folder, Random random) throws IOException {
    this.folder = folder;
    this.random = random;
    this.kinds = FileKinds.all(folder, random);
    for (FileKind kind : kinds) {
      try {
        kind.reader().read(kind.path());
      } catch (Exception e) {
        throw new Violation("the undamaged " + kind.name() + " is refused: " + e, e);
      }
    }
  }

  long read() {
    return read;
  }

  long refused() {
    return refused;
  }

  /** Damages one file of each kind, once. */
  void round() throws IOException {
    for (FileKind kind : kinds) {
      byte[] good = Files.readAllBytes(kind.path());
      byte[] bad = damaged(good);
      Files.write(kind.path(), bad);
      long start = System.nanoTime();
      try {
        kind.reader().read(kind.path());
        read++;
      } catch (Exception | OutOfMemoryError | StackOverflowError e) {
        if (!refusal(e)) {
          Path evidence = Files.write(Files.createTempFile("kvasir-fuzz-", "." + kind.name()), bad);
          throw new Violation(kind.name() + ": " + e + "; the file is " + evidence, e);
        }
        refused++;
      } finally {
        Files.write(kind.path(), good);
      }
      Violation.unless(System.nanoTime() - start < SLOW_NANOS, kind.name() + " takes more than 20 s to be refused");
    }
  }

  /** Whether this is an error of ours or of the file system, with a text that one can read. */
  private static boolean refusal(Throwable e) {
    boolean ours = e.getClass().getPackageName().startsWith("dev.kvasir.");
    String message = String.valueOf(e.getMessage());
    return (ours || e instanceof IOException || e instanceof IllegalArgumentException) && message.length() < 2048;
  }

  private byte[] damaged(byte[] good) {
    byte[] bytes = good.clone();
    for (int i = 1 + random.nextInt(4); i > 0 && bytes.length > 0; i--) {
      // Most of what can be told wrongly is told at the beginning.
      int reach = random.nextBoolean() ? Math.min(bytes.length, 2048) : bytes.length;
      int at = random.nextInt(reach);
      switch (random.nextInt(7)) {
        case 0 -> bytes[at] ^= (byte) (1 << random.nextInt(8));
        case 1 -> bytes[at] = (byte) random.nextInt(256);
        case 2 -> bytes = Arrays.copyOf(bytes, at);
        case 3 -> bytes = replaced(bytes, at, Math.min(bytes.length, at + 1 + random.nextInt(8)), new byte[0]);
        case 4 -> bytes = replaced(bytes, at, at, Arrays.copyOfRange(good, 0, Math.min(good.length, 64)));
        case 5 -> bytes = number(bytes, at);
        default -> Arrays.fill(bytes, at, Math.min(bytes.length, at + 8), (byte) (random.nextBoolean() ? 0xFF : 0x7F));
      }
    }
    return bytes;
  }

  /** A number of the text, where one follows, becomes another one. */
  private byte[] number(byte[] bytes, int from) {
    String[] numbers = {"0", "-1", "4294967296", "9223372036854775807", "1e308", "0.5", "[]", "null", "99999999999999999999"};
    for (int at = from; at < bytes.length; at++) {
      if (bytes[at] >= '0' && bytes[at] <= '9') {
        int end = at;
        while (end < bytes.length && bytes[end] >= '0' && bytes[end] <= '9') {
          end++;
        }
        return replaced(bytes, at, end, numbers[random.nextInt(numbers.length)].getBytes());
      }
    }
    return bytes;
  }

  private static byte[] replaced(byte[] bytes, int from, int to, byte[] by) {
    byte[] result = new byte[bytes.length - (to - from) + by.length];
    System.arraycopy(bytes, 0, result, 0, from);
    System.arraycopy(by, 0, result, from, by.length);
    System.arraycopy(bytes, to, result, from + by.length, bytes.length - to);
    return result;
  }
}
