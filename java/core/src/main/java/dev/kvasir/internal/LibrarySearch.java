package dev.kvasir.internal;

import dev.kvasir.error.NativeUnavailableException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Where the native library is looked for, in which order, and what is said when it is not there.
 *
 * <ol>
 *   <li>{@code kvasir.native.path}, a file or the folder that holds it: if set, nothing else is tried
 *   <li>the class path's library for {@code <platform>-gpu}, unless the backend is cpu
 *   <li>the class path's library for {@code <platform>}, unless the backend is cuda
 * </ol>
 */
final class LibrarySearch {

  /** The outside world: the class path and the dynamic linker. */
  interface Host {
    /** The library that the class path has for a classifier, as a file; null if it has none. */
    @Nullable Path resource(String classifier) throws IOException;

    /**
     * Loads a library file, or a copy of it where the JVM wants one, and says which. Throws UnsatisfiedLinkError or
     * IllegalCallerException.
     */
    Path load(Path file);
  }

  /**
   * A library that loaded.
   *
   * @param file where it was loaded from
   * @param classifier the platform, with -gpu or without; "path" where the user named the file
   * @param degradedBecause why it is not the one that was preferred; null if it is
   */
  record Found(Path file, String classifier, @Nullable String degradedBecause) {}

  private final BackendRequest backend;
  private final @Nullable String path;
  private final String platform;
  private final Host host;
  private final List<String> tried = new ArrayList<>();
  private @Nullable Throwable firstFailure;

  LibrarySearch(BackendRequest backend, @Nullable String path, String platform, Host host) {
    this.backend = backend;
    this.path = path == null || path.isBlank() ? null : path;
    this.platform = platform;
    this.host = host;
  }

  /** The first library that loads. Throws NativeUnavailableException if none does. */
  Found find() {
    if (path != null) {
      Path file = load(fileAt(path));
      if (file != null) {
        return new Found(file, "path", null);
      }
      throw unavailable(NativeLibrary.PATH_PROPERTY + "=" + path + " does not lead to a library that loads");
    }
    boolean gpuPresent = false;
    if (backend.wantsGpu()) {
      Path resource = resource(gpuClassifier());
      gpuPresent = resource != null;
      Path file = resource == null ? null : load(resource);
      if (file != null) {
        return new Found(file, gpuClassifier(), null);
      }
    }
    if (backend.allowsCpu()) {
      String reason = gpuPresent ? "the " + gpuClassifier() + " library does not load: " + firstFailure : null;
      Path resource = resource(platform);
      Path file = resource == null ? null : load(resource);
      if (file != null) {
        return new Found(file, platform, reason);
      }
      if (!backend.wantsGpu()) {
        // The library for GPUs has the kernels for CPUs as well.
        resource = resource(gpuClassifier());
        file = resource == null ? null : load(resource);
        if (file != null) {
          return new Found(file, gpuClassifier(), null);
        }
      }
    }
    throw unavailable(
        "no native library for " + wanted() + " could be loaded; add the dependency dev.kvasir:kvasir with classifier "
            + wanted() + (LibrarySearch.class.getModule().isNamed() ? " and --add-modules " + moduleName() : "")
            + ", or set " + NativeLibrary.PATH_PROPERTY + " to the library or its folder");
  }

  /** An exception about this search, with all that is needed to understand it. */
  NativeUnavailableException unavailable(String problem) {
    return new NativeUnavailableException(
        problem
            + " [os=" + System.getProperty("os.name")
            + ", arch=" + System.getProperty("os.arch")
            + ", wanted=" + wanted()
            + ", " + NativeLibrary.BACKEND_PROPERTY + "=" + backend
            + ", tried=" + tried
            + "]",
        firstFailure);
  }

  private String wanted() {
    return backend == BackendRequest.CUDA ? gpuClassifier() : platform;
  }

  /** What the jar of the natives is called on a module path. */
  private String moduleName() {
    return "dev.kvasir." + wanted().replace('-', '.');
  }

  private String gpuClassifier() {
    return platform + "-gpu";
  }

  private static Path fileAt(String path) {
    Path given = Path.of(path).toAbsolutePath();
    return Files.isDirectory(given) ? given.resolve(System.mapLibraryName(NativeLibrary.NAME)) : given;
  }

  private @Nullable Path resource(String classifier) {
    try {
      Path file = host.resource(classifier);
      if (file == null) {
        tried.add("class path, " + classifier + ": not there");
      }
      return file;
    } catch (IOException e) {
      fail("class path, " + classifier, e);
      return null;
    }
  }

  /** The file that was loaded; null if it does not load. */
  private @Nullable Path load(Path file) {
    if (!Files.isRegularFile(file)) {
      tried.add(file + ": no such file");
      return null;
    }
    try {
      Path loaded = host.load(file);
      tried.add(loaded + ": loaded");
      return loaded;
    } catch (UnsatisfiedLinkError | IllegalCallerException e) {
      fail(file.toString(), e); // IllegalCallerException: the JVM runs without --enable-native-access
      return null;
    }
  }

  private void fail(String where, Throwable failure) {
    tried.add(where + ": " + failure.getMessage());
    if (firstFailure == null) {
      firstFailure = failure;
    }
  }
}
