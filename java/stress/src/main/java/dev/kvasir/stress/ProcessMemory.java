package dev.kvasir.stress;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** What the operating system says of this process. */
final class ProcessMemory {

  private ProcessMemory() {}

  /** Resident bytes after a garbage collection; Linux only. */
  static long resident() throws IOException {
    System.gc();
    for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
      if (line.startsWith("VmRSS:")) {
        return 1024 * Long.parseLong(line.replaceAll("\\D", ""));
      }
    }
    throw new IOException("no VmRSS in /proc/self/status");
  }

  /** Bytes of live objects on the heap, roughly. */
  static long heap() {
    Runtime runtime = Runtime.getRuntime();
    return runtime.totalMemory() - runtime.freeMemory();
  }
}
