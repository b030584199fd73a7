package dev.kvasir.runner.file;

import dev.kvasir.internal.model.NativeWeights;
import java.io.Closeable;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * A GGUF file, version 2 or 3: metadata by name, and tensors that are mapped into memory where they are read. Where a
 * model is cut into several files, the first has the metadata, and stands for all of them.
 *
 * <p>Nothing that the file says is believed before it is checked against the length of the file. Mapped weights are the
 * file itself, and no operating system lets a program keep others from cutting it short: then native code that reads
 * beyond its end is ended by the system. {@link #requireWhole} refuses such a file, and what runs on mapped weights asks
 * it before every step; a cut within a step is left. Copied weights depend on the file no more.
 */
public final class Gguf implements WeightFile {

  /** Where a tensor lies. */
  record Entry(int type, long rows, long width, long offset, long bytes) {}

  private static final String NUMBER = "split.no";
  private static final String COUNT = "split.count";
  private static final String TENSORS = "split.tensors.count";
  private static final int MOST_FILES = 1 << 10;

  private final Path path;
  private final RandomAccessFile file;
  /** That of the file: for reading weights. An interrupt of who calls it closes it, and the file. */
  private final FileChannel channel;
  private final long length;
  private final boolean copied;
  private final Map<String, Object> metadata;
  private final Map<String, Entry> tensors;
  /** The others of a model in several files. */
  private final List<Gguf> others = new ArrayList<>();
  /** Where each tensor is. */
  private final Map<String, Gguf> places = new LinkedHashMap<>();

  Gguf(Path path, RandomAccessFile file, boolean copied, Map<String, Object> metadata, Map<String, Entry> tensors)
      throws IOException {
    this.path = path;
    this.file = file;
    this.channel = file.getChannel();
    this.length = file.length();
    this.copied = copied;
    this.metadata = Collections.unmodifiableMap(metadata);
    this.tensors = Collections.unmodifiableMap(tensors);
    tensors.keySet().forEach(name -> places.put(name, this));
  }

  /** Opens a file whose weights are mapped: see {@link #open(Path, boolean)}. */
  public static Gguf open(Path path) throws IOException {
    return open(path, false);
  }

  /**
   * Opens a file, and the others of its model where it is the first of several, and reads all but the weights.
   *
   * @param path the file; the names of several end in {@code -00001-of-00003.gguf} and so on
   * @param copied whether weights are copied to memory of their own where they are read, not mapped
   * @throws ModelException if it is no such file, was cut short, or contradicts itself
   * @throws IOException if it cannot be read
   */
  public static Gguf open(Path path, boolean copied) throws IOException {
    Gguf file = openOne(path, copied);
    try {
      file.openOthers();
      return file;
    } catch (IOException | RuntimeException | Error e) {
      file.close();
      throw e;
    }
  }

  private static Gguf openOne(Path path, boolean copied) throws IOException {
    if (Files.notExists(path)) {
      throw new NoSuchFileException(path.toString());
    }
    RandomAccessFile file = new RandomAccessFile(path.toFile(), "r");
    try {
      return new GgufHeader(path, file).read(copied);
    } catch (IOException | RuntimeException | Error e) {
      file.close();
      throw e;
    }
  }

  private void openOthers() throws IOException {
    int count = findInteger(COUNT).orElse(1);
    if (count <= 1) {
      return;
    }
    int number = findInteger(NUMBER).orElse(0);
    String name = String.valueOf(path.getFileName());
    String end = end(0, count);
    if (number != 0 || count > MOST_FILES || !name.endsWith(end)) {
      throw new ModelException(
          path + ": " + NUMBER + " is " + number + " and " + COUNT + " " + count + "; a model of several files, up to "
              + MOST_FILES + ", is opened by the first, whose name ends in " + end);
    }
    String stem = name.substring(0, name.length() - end.length());
    for (int i = 1; i < count; i++) {
      Gguf other = openOne(path.resolveSibling(stem + end(i, count)), copied);
      others.add(other);
      other.requireInteger(NUMBER, i);
      other.requireInteger(COUNT, count);
      for (String tensor : other.tensors.keySet()) {
        if (places.put(tensor, other) != null) {
          throw new ModelException(other.path + ": another file has " + tensor + ", too");
        }
      }
    }
    if (says(TENSORS)) {
      requireInteger(TENSORS, places.size());
    }
  }

  private static String end(int number, int count) {
    return String.format(Locale.ROOT, "-%05d-of-%05d.gguf", number + 1, count);
  }

  private void requireInteger(String key, int expected) throws ModelException {
    if (integer(key) != expected) {
      throw new ModelException(path + ": " + key + " is " + integer(key) + ", not " + expected);
    }
  }

  /** The file. */
  public Path path() {
    return path;
  }

  @Override
  public Set<String> names() {
    return Collections.unmodifiableSet(places.keySet());
  }

  /** Whether the metadata have a key, of whatever type. */
  public boolean says(String key) {
    return metadata.containsKey(key);
  }

  /** A text. */
  public String text(String key) throws ModelException {
    return findText(key).orElseThrow(() -> missing(key));
  }

  /** A text, if there is one. */
  public Optional<String> findText(String key) throws ModelException {
    return find(key, String.class, "a text");
  }

  /** A whole number. */
  public int integer(String key) throws ModelException {
    return findInteger(key).orElseThrow(() -> missing(key));
  }

  /** A whole number, if there is one. */
  public Optional<Integer> findInteger(String key) throws ModelException {
    Optional<Long> value = find(key, Long.class, "a whole number");
    if (value.isPresent() && value.get() != value.get().intValue()) {
      throw new ModelException(path + ": " + key + " is " + value.get());
    }
    return value.map(Long::intValue);
  }

  /** A number, if there is one. */
  public Optional<Double> findNumber(String key) throws ModelException {
    Optional<Number> value = find(key, Number.class, "a number");
    return value.map(Number::doubleValue);
  }

  /** A number. */
  public double number(String key) throws ModelException {
    return findNumber(key).orElseThrow(() -> missing(key));
  }

  /** True or false, if it is there. */
  public Optional<Boolean> findFlag(String key) throws ModelException {
    return find(key, Boolean.class, "true or false");
  }

  /** An array of texts. */
  public String[] texts(String key) throws ModelException {
    return find(key, String[].class, "an array of texts").orElseThrow(() -> missing(key));
  }

  /** An array of numbers, if there is one. */
  public Optional<double[]> findNumbers(String key) throws ModelException {
    return find(key, double[].class, "an array of numbers");
  }

  private <T> Optional<T> find(String key, Class<T> type, String what) throws ModelException {
    Object value = metadata.get(key);
    if (value != null && !type.isInstance(value)) {
      throw new ModelException(path + ": " + key + " is not " + what);
    }
    return Optional.ofNullable(type.cast(value));
  }

  private ModelException missing(String key) {
    return new ModelException(path + " has no " + key);
  }

  @Override
  public boolean has(String name) {
    return places.containsKey(name);
  }

  @Override
  public Weights read(String name) throws IOException {
    Gguf place = places.get(name);
    if (place == null) {
      throw new ModelException(path + " has no tensor " + name);
    }
    return place.read(name, place.tensors.get(name));
  }

  private Weights read(String name, Entry entry) throws IOException {
    WeightType type =
        WeightType.of(entry.type())
            .orElseThrow(
                () ->
                    new ModelException(
                        path + ": " + name + " is of type " + WeightType.nameOf(entry.type()) + "; " + WeightType.names()
                            + " can be run"));
    if (entry.bytes() > Integer.MAX_VALUE || entry.rows() > Integer.MAX_VALUE || entry.width() > Integer.MAX_VALUE) {
      throw new ModelException(path + ": " + name + " has " + entry.bytes() + " bytes; up to 2 GiB can be run");
    }
    requireLength();
    ByteBuffer bytes =
        copied ? copy(name, entry) : channel.map(FileChannel.MapMode.READ_ONLY, entry.offset(), entry.bytes());
    return new Weights(name, type, (int) entry.rows(), (int) entry.width(), bytes);
  }

  private ByteBuffer copy(String name, Entry entry) throws IOException {
    ByteBuffer bytes = NativeWeights.memory((int) entry.bytes());
    while (bytes.hasRemaining()) {
      if (channel.read(bytes, entry.offset() + bytes.position()) < 0) {
        throw new ModelException(path + " was cut short while " + name + " was read");
      }
    }
    return bytes.flip();
  }

  /**
   * Throws ModelException where the file is shorter than it was when it was opened. Goes by the open file, whatever its
   * path names by now: a file that was replaced is as it was. Interrupted threads may ask, too: that closes nothing.
   */
  public void requireWhole() throws IOException {
    requireLength();
    for (Gguf other : others) {
      other.requireLength();
    }
  }

  private void requireLength() throws IOException {
    long now = file.length(); // not the channel's size, which an interrupt would close for all who run the model
    if (now < length) {
      throw new ModelException(path + " was cut short while in use: " + now + " of " + length + " bytes are left");
    }
  }

  /** Whether weights are copied where they are read. */
  public boolean copied() {
    return copied;
  }

  @Override
  public void close() throws IOException {
    try (Closeable own = file) {
      for (Gguf other : others) {
        other.close();
      }
    }
  }

  @Override
  public String toString() {
    return "Gguf[" + path + ", " + places.size() + " tensors]";
  }
}
