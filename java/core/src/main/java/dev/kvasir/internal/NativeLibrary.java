package dev.kvasir.internal;

import dev.kvasir.error.NativeUnavailableException;
import dev.kvasir.internal.jni.Native;
import java.io.File;
import java.io.IOException;
import java.net.MalformedURLException;
import java.net.URI;
import java.net.URL;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import org.bytedeco.javacpp.Loader;
import org.bytedeco.javacpp.annotation.Platform;
import org.jspecify.annotations.Nullable;

/**
 * Loads the native library, once, when it is first needed; {@link LibrarySearch} has the order. A failure is remembered
 * and thrown again by every later call.
 */
@Platform(library = NativeLibrary.NAME)
public final class NativeLibrary {

  /** Name of the system property that says which backends may be used: auto, cpu or cuda. */
  public static final String BACKEND_PROPERTY = "kvasir.backend";
  /** Name of the system property that holds the library file or its folder. */
  public static final String PATH_PROPERTY = "kvasir.native.path";

  /** Name of the environment variable that native code reads to choose among the backends it has. */
  private static final String BACKEND_VARIABLE = "KVASIR_BACKEND";

  static final String NAME = "jnikvasir";

  private static final String CUDA = "cuda";

  private static @Nullable NativeUnavailableException failure;
  private static volatile @Nullable NativeLibrary loaded;

  private final LibrarySearch.Found found;
  private final String defaultBackend;
  private final long nanos;

  private NativeLibrary(LibrarySearch.Found found, String defaultBackend, long nanos) {
    this.found = found;
    this.defaultBackend = defaultBackend;
    this.nanos = nanos;
  }

  /** Loads the library unless it is loaded. Throws NativeUnavailableException. */
  public static NativeLibrary get() {
    NativeLibrary library = loaded;
    return library != null ? library : loadOnce();
  }

  /** The file that was loaded. */
  public Path file() {
    return found.file();
  }

  /** The classifier of the jar that it came from, or "path". */
  public String classifier() {
    return found.classifier();
  }

  /** The backend that "auto" means under the property's restriction. */
  public String defaultBackend() {
    return defaultBackend;
  }

  /** How long loading took. */
  public long nanos() {
    return nanos;
  }

  private static synchronized NativeLibrary loadOnce() {
    NativeLibrary library = loaded;
    if (library != null) {
      return library;
    }
    if (failure != null) {
      throw new NativeUnavailableException(String.valueOf(failure.getMessage()), failure);
    }
    boolean interrupted = Thread.interrupted(); // or files could not be locked, and the failure would stay
    try {
      library = load();
    } catch (NativeUnavailableException e) {
      if (!Thread.currentThread().isInterrupted()) {
        failure = e;
      }
      throw e;
    } finally {
      if (interrupted) {
        Thread.currentThread().interrupt();
      }
    }
    loaded = library;
    return library;
  }

  private static NativeLibrary load() {
    long start = System.nanoTime();
    Events.Load event = Events.beginLoad();
    BackendRequest request = BackendRequest.parse(System.getProperty(BACKEND_PROPERTY));
    LibrarySearch search =
        new LibrarySearch(request, System.getProperty(PATH_PROPERTY), Loader.getPlatform(), new JvmHost());
    if (Loader.class.getClassLoader() != NativeLibrary.class.getClassLoader()) {
      throw search.unavailable("kvasir and javacpp must be loaded by the same class loader");
    }
    LibrarySearch.Found found = search.find();
    String backend;
    try {
      tellJavaCpp(found.file());
      requireSameVersion(search);
      backend = defaultBackend(request, search);
    } catch (LinkageError | IOException e) {
      throw new NativeUnavailableException(found.file() + " is not the library of these classes: " + e, e);
    } catch (NativeUnavailableException e) {
      throw e;
    } catch (RuntimeException e) {
      throw new NativeUnavailableException(environment() + NativeErrors.translate(e).getMessage(), e);
    }
    warnIfDegraded(request, found);
    if (event != null) {
      event.library = found.file().toString();
      event.classifier = found.classifier();
      event.commit();
    }
    return new NativeLibrary(found, backend, System.nanoTime() - start);
  }

  /**
   * Makes the Loader.load() in the generated classes' initialisers find the library loaded: first under its name, then
   * under the place where the Loader would look for it, or it would search again and link its cache to this file.
   */
  private static void tellJavaCpp(Path file) throws MalformedURLException {
    URL url = file.toUri().toURL();
    Loader.loadLibrary(NativeLibrary.class, new URL[] {url}, NAME);
    Properties properties = new Properties();
    properties.putAll(Loader.loadProperties());
    properties.setProperty("platform.linkpath", String.valueOf(file.getParent()));
    Loader.load(NativeLibrary.class, properties, true);
  }

  private static void requireSameVersion(LibrarySearch search) {
    Module module = NativeLibrary.class.getModule();
    String classes =
        module.isNamed()
            ? module.getDescriptor().rawVersion().orElse(null)
            : NativeLibrary.class.getPackage().getImplementationVersion();
    if (classes != null && !classes.equals(Native.version())) {
      throw search.unavailable("the native library is version " + Native.version() + ", the classes are " + classes);
    }
  }

  private static String defaultBackend(BackendRequest request, LibrarySearch search) {
    switch (request) {
      case CUDA:
        if (isAvailable(CUDA)) {
          return CUDA;
        }
        throw search.unavailable(BACKEND_PROPERTY + "=cuda, but " + whyNoCuda());
      case CPU:
        String preferred = Native.default_backend();
        return preferred.equals(CUDA) ? firstAvailableBut(CUDA) : preferred;
      default:
        return Native.default_backend();
    }
  }

  private static void warnIfDegraded(BackendRequest request, LibrarySearch.Found found) {
    String reason = found.degradedBecause();
    if (reason == null && request == BackendRequest.AUTO && found.classifier().endsWith("-gpu") && !isAvailable(CUDA)) {
      reason = whyNoCuda();
    }
    if (reason != null) {
      System.getLogger("dev.kvasir")
          .log(
              System.Logger.Level.WARNING,
              "Kvasir runs on the CPU: {0}. Set {1}=cpu to silence this, or =cuda to insist.",
              reason,
              BACKEND_PROPERTY);
    }
  }

  private static String environment() {
    String wanted = System.getenv(BACKEND_VARIABLE);
    return wanted == null ? "" : BACKEND_VARIABLE + "=" + wanted + ": ";
  }

  private static boolean isAvailable(String backend) {
    for (int i = 0; i < Native.backend_count(); i++) {
      if (Native.backend_name(i).equals(backend)) {
        return Native.backend_available(i);
      }
    }
    return false;
  }

  private static String firstAvailableBut(String unwanted) {
    for (int i = 0; i < Native.backend_count(); i++) {
      if (Native.backend_available(i) && !Native.backend_name(i).equals(unwanted)) {
        return Native.backend_name(i);
      }
    }
    throw new NativeUnavailableException("no backend is available but " + unwanted, null);
  }

  private static String whyNoCuda() {
    for (int i = 0; i < Native.backend_count(); i++) {
      if (Native.backend_name(i).equals(CUDA)) {
        return "the cuda backend cannot run here: " + Native.backend_obstacle(i);
      }
    }
    return "the loaded library was built without the cuda backend";
  }

  /** The class path and the linker of this JVM. */
  private static final class JvmHost implements LibrarySearch.Host {

    @Override
    public @Nullable Path resource(String classifier) throws IOException {
      URL url = Loader.findResource(Native.class, classifier + "/" + System.mapLibraryName(NAME));
      if (url == null) {
        return null;
      }
      if (url.getProtocol().equals("file")) {
        return Path.of(URI.create(url.toString()));
      }
      try {
        File extracted = Loader.cacheResource(url);
        if (extracted != null) {
          return extracted.toPath();
        }
        throw new IOException("nothing was extracted");
      } catch (IOException e) {
        throw new IOException(
            "cannot unpack " + url + "; set org.bytedeco.javacpp.cachedir to a folder that can be written to, or unpack"
                + " it yourself and set " + PATH_PROPERTY + ": " + e,
            e);
      }
    }

    /** A JVM gives a file to one class loader only: to any further one we load a copy. */
    @Override
    public Path load(Path file) {
      try {
        System.load(file.toString());
        return file;
      } catch (UnsatisfiedLinkError e) {
        if (!String.valueOf(e.getMessage()).contains("already loaded in another classloader")) {
          throw e;
        }
        try {
          Path copy = temporaryCopy(file);
          System.load(copy.toString());
          return copy;
        } catch (IOException f) {
          e.addSuppressed(f);
          throw e;
        }
      }
    }

    private static Path temporaryCopy(Path library) throws IOException {
      Path folder = Files.createTempDirectory("kvasir-");
      folder.toFile().deleteOnExit();
      Path copy = Files.copy(library, folder.resolve(System.mapLibraryName(NAME)));
      copy.toFile().deleteOnExit();
      return copy;
    }
  }
}
