package dev.kvasir;

import dev.kvasir.error.NativeUnavailableException;
import dev.kvasir.internal.NativeLibrary;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;

/**
 * The library as a whole: its version, what it can do on this machine, how many threads it uses.
 *
 * <p>The native library is loaded by the first call that needs it, here or in {@link KvCache.Builder#build}:
 *
 * <ol>
 *   <li>from the system property {@code kvasir.native.path}, a file or the folder that holds it, if set; else
 *   <li>from the jar with classifier {@code <platform>-gpu}, unless {@code kvasir.backend} is {@code cpu}; else
 *   <li>from the jar with classifier {@code <platform>}, unless {@code kvasir.backend} is {@code cuda}.
 * </ol>
 *
 * <p>The platform is {@code linux-x86_64}, {@code linux-arm64} and so on. {@code kvasir.backend} is {@code auto},
 * {@code cpu} or {@code cuda}. With {@code auto}, the default, a GPU that cannot be used is a warning in the log of
 * {@code dev.kvasir}; a forced choice that cannot be had is a {@link NativeUnavailableException}, now and on every
 * later call.
 *
 * <p>Jars are found on the class path, or on the module path among the modules that the program has: that of the natives,
 * {@code dev.kvasir.linux.x86_64} and so on, must be added by {@code --add-modules}, as nothing requires it. From JDK 24
 * on the JVM warns about libraries that load native code unless it is started with {@code
 * --enable-native-access=ALL-UNNAMED}, or {@code =dev.kvasir,org.bytedeco.javacpp} for modules.
 *
 * <p>All methods may be called from any thread.
 */
public final class Kvasir {

  private Kvasir() {}

  /**
   * How the native library was loaded.
   *
   * @param library the file
   * @param classifier the classifier of the jar that it came from; {@code "path"} for {@code kvasir.native.path}
   * @param defaultBackend see {@link Kvasir#defaultBackend}
   * @param duration how long it took
   */
  public record LoadReport(Path library, String classifier, String defaultBackend, Duration duration) {}

  /**
   * Loads the native library, if it is not loaded yet, and says from where.
   *
   * @return the report
   * @throws NativeUnavailableException if it cannot be loaded
   */
  public static LoadReport load() {
    NativeLibrary library = NativeLibrary.get();
    return new LoadReport(
        library.file(), library.classifier(), library.defaultBackend(), Duration.ofNanos(library.nanos()));
  }

  /**
   * The version of the native library.
   *
   * @return e.g. {@code "1.2.3"}
   * @throws NativeUnavailableException if it cannot be loaded
   */
  public static String version() {
    return Catalog.version();
  }

  /**
   * The backends of this build, best first. The last, {@code "scalar"}, is always available.
   *
   * @return the backends, those that this machine cannot run included
   * @throws NativeUnavailableException if the native library cannot be loaded
   */
  public static List<BackendInfo> backends() {
    return Catalog.backends();
  }

  /**
   * The backend of caches that name none: the best that is available and that {@code kvasir.backend} allows, or the
   * one in the environment variable {@code KVASIR_BACKEND}.
   *
   * @return its name
   * @throws NativeUnavailableException if the native library cannot be loaded
   */
  public static String defaultBackend() {
    return NativeLibrary.get().defaultBackend();
  }

  /**
   * The codecs of this build.
   *
   * @return the codecs
   * @throws NativeUnavailableException if the native library cannot be loaded
   */
  public static List<CodecInfo> codecs() {
    return Catalog.codecs();
  }

  /**
   * How many threads compute, those of callers included.
   *
   * @return 1..1024; the number of cores that this process may run on unless set
   * @throws NativeUnavailableException if the native library cannot be loaded
   */
  public static int threads() {
    return Catalog.threads();
  }

  /**
   * Sets how many threads compute, for all caches together that have none of their own ({@link
   * KvCache.Builder#threads}). Calls under way finish on the threads they have.
   *
   * @param threads 1..1024
   * @throws IllegalArgumentException if out of range
   * @throws NativeUnavailableException if the native library cannot be loaded, or the system lets this process start no
   *     more threads; then there are as many as before
   */
  public static void setThreads(int threads) {
    Catalog.setThreads(threads);
  }
}
