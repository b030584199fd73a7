package dev.kvasir.stress;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.error.KvFileException;
import dev.kvasir.file.KvFile;
import dev.kvasir.method.Uniform;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/** Kills a process that saves sequences, whenever it may be: there is no file, or one of those that it wrote, whole. */
final class KilledWriter {

  private static final long[] SEEDS = {1, 2};

  private final Path folder;
  private final Random random;
  private final List<float[]> outputs = new ArrayList<>();

  KilledWriter(Path folder, Random random) {
    this.folder = folder;
    this.random = random;
    try (KvCache cache = cache()) {
      for (long seed : SEEDS) {
        try (KvSequence sequence = SavedSample.sequence(cache, seed)) {
          outputs.add(SavedSample.attend(sequence));
        }
      }
    }
  }

  private static KvCache cache() {
    return KvCache.builder(SavedSample.geometry()).method(Uniform.bits(2)).build();
  }

  /** The process: saves one sequence, then the other one, for ever. */
  static void write(Path path) throws IOException {
    try (KvCache cache = cache();
        KvSequence one = SavedSample.sequence(cache, SEEDS[0]);
        KvSequence two = SavedSample.sequence(cache, SEEDS[1])) {
      System.out.println("ready");
      while (true) {
        one.save(path);
        two.save(path);
      }
    }
  }

  FileFaults.Outcome round() throws IOException, InterruptedException {
    Path path = folder.resolve("sequence.kv");
    List<String> command = new ArrayList<>(List.of(System.getProperty("java.home") + "/bin/java", "-Xshare:auto"));
    String library = System.getProperty("kvasir.native.path");
    if (library != null) {
      command.add("-Dkvasir.native.path=" + library);
    }
    command.addAll(List.of("-cp", System.getProperty("java.class.path"), FileFaults.class.getName(), "write"));
    command.add(path.toString());
    Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
    int first = process.getInputStream().read();
    Violation.unless(first == 'r', "the writer did not start");
    TimeUnit.MICROSECONDS.sleep(random.nextInt(60_000));
    process.destroyForcibly().waitFor();
    try (KvCache cache = cache();
        KvSequence restored = cache.restore(path)) {
      KvFile.verify(path);
      float[] now = SavedSample.attend(restored);
      boolean known = outputs.stream().anyMatch(each -> Arrays.equals(each, now));
      return known ? FileFaults.Outcome.REFUSED : FileFaults.Outcome.WRONG;
    } catch (NoSuchFileException e) {
      return FileFaults.Outcome.REFUSED;
    } catch (KvFileException e) {
      System.out.println("FAILED  a killed writer left " + e.getMessage());
      return FileFaults.Outcome.WRONG;
    }
  }

  void delete() throws IOException {
    try (Stream<Path> files = Files.walk(folder)) {
      files.sorted(Comparator.reverseOrder()).forEach(file -> file.toFile().delete());
    }
  }
}
