package dev.kvasir.internal;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.error.NativeUnavailableException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The order of the search, on a class path and a linker that are made up. */
class LibrarySearchTest implements LibrarySearch.Host {

  private static final String PLATFORM = "linux-riscv64";
  private static final String GPU = PLATFORM + "-gpu";

  @TempDir private Path folder;
  private final Map<String, Path> jars = new HashMap<>();
  private final Map<Path, UnsatisfiedLinkError> broken = new HashMap<>();
  private final List<Path> loads = new ArrayList<>();
  private Path cpuFile;
  private Path gpuFile;

  @BeforeEach
  void files() throws IOException {
    cpuFile = Files.createFile(folder.resolve("cpu"));
    gpuFile = Files.createFile(folder.resolve("gpu"));
  }

  @Override
  public Path resource(String classifier) {
    return jars.get(classifier);
  }

  @Override
  public Path load(Path file) {
    loads.add(file);
    if (broken.containsKey(file)) {
      throw broken.get(file);
    }
    return file;
  }

  private LibrarySearch search(BackendRequest backend, Path path) {
    return new LibrarySearch(backend, path == null ? null : path.toString(), PLATFORM, this);
  }

  private static void assertSays(Exception e, Object... parts) {
    for (Object part : parts) {
      assertTrue(e.getMessage().contains(part.toString()), () -> "no '" + part + "' in: " + e.getMessage());
    }
  }

  @Test
  void autoPrefersTheGpu() {
    jars.put(PLATFORM, cpuFile);
    jars.put(GPU, gpuFile);
    LibrarySearch.Found found = search(BackendRequest.AUTO, null).find();
    assertEquals(new LibrarySearch.Found(gpuFile, GPU, null), found);
    assertEquals(List.of(gpuFile), loads);
  }

  @Test
  void autoTakesTheCpuWithoutAWordWhereThereIsNoGpuJar() {
    jars.put(PLATFORM, cpuFile);
    assertNull(search(BackendRequest.AUTO, null).find().degradedBecause());
  }

  @Test
  void autoDegradesWithTheReason() {
    jars.put(PLATFORM, cpuFile);
    jars.put(GPU, gpuFile);
    broken.put(gpuFile, new UnsatisfiedLinkError("libcuda.so.1: cannot open shared object file"));
    LibrarySearch.Found found = search(BackendRequest.AUTO, null).find();
    assertEquals(cpuFile, found.file());
    assertTrue(String.valueOf(found.degradedBecause()).contains("libcuda.so.1"), found.toString());
    assertTrue(String.valueOf(found.degradedBecause()).contains(GPU), found.toString());
  }

  @Test
  void cpuNeverTouchesTheGpu() {
    jars.put(PLATFORM, cpuFile);
    jars.put(GPU, gpuFile);
    assertEquals(new LibrarySearch.Found(cpuFile, PLATFORM, null), search(BackendRequest.CPU, null).find());
    assertEquals(List.of(cpuFile), loads);
  }

  @Test
  void cudaNeverFallsBack() {
    jars.put(PLATFORM, cpuFile);
    NativeUnavailableException absent =
        assertThrows(NativeUnavailableException.class, search(BackendRequest.CUDA, null)::find);
    assertSays(absent, "classifier " + GPU, GPU + ": not there", "kvasir.backend=cuda", System.getProperty("os.arch"));

    jars.put(GPU, gpuFile);
    UnsatisfiedLinkError error = new UnsatisfiedLinkError("libcuda.so.1: cannot open shared object file");
    broken.put(gpuFile, error);
    NativeUnavailableException e =
        assertThrows(NativeUnavailableException.class, search(BackendRequest.CUDA, null)::find);
    assertSays(e, gpuFile, "libcuda.so.1");
    assertSame(error, e.getCause());
    assertEquals(List.of(gpuFile), loads);
  }

  @Test
  void aPathIsTheOnlyPlace() throws IOException {
    jars.put(PLATFORM, cpuFile);
    Path file = Files.createFile(folder.resolve(System.mapLibraryName(NativeLibrary.NAME)));
    assertEquals(new LibrarySearch.Found(file, "path", null), search(BackendRequest.AUTO, file).find());
    assertEquals(new LibrarySearch.Found(file, "path", null), search(BackendRequest.AUTO, folder).find());
    broken.put(file, new UnsatisfiedLinkError("wrong ELF class"));
    assertSays(
        assertThrows(NativeUnavailableException.class, search(BackendRequest.AUTO, folder)::find),
        "kvasir.native.path=" + folder,
        file,
        "wrong ELF class");
  }

  @Test
  void anEmptyClassPathSaysWhatToAdd() {
    assertSays(
        assertThrows(NativeUnavailableException.class, search(BackendRequest.AUTO, null)::find),
        "dev.kvasir:kvasir with classifier " + PLATFORM,
        GPU + ": not there",
        PLATFORM + ": not there");
  }

  @Test
  void requestsAreWords() {
    assertEquals(BackendRequest.AUTO, BackendRequest.parse(null));
    assertEquals(BackendRequest.AUTO, BackendRequest.parse(" "));
    assertEquals(BackendRequest.CPU, BackendRequest.parse("CPU"));
    assertEquals(BackendRequest.CUDA, BackendRequest.parse("cuda"));
    assertThrows(NativeUnavailableException.class, () -> BackendRequest.parse("tpu"));
  }
}
