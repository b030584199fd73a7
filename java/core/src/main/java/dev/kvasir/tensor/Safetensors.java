package dev.kvasir.tensor;

import dev.kvasir.internal.json.FileReplacement;
import dev.kvasir.internal.json.Json;
import java.io.EOFException;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.BufferOverflowException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;

/**
 * A safetensors file: named tensors behind a JSON header. Reads and writes.
 *
 * <pre>{@code
 * try (Safetensors file = Safetensors.open(path)) {
 *   float[] keys = file.read("layers.0.k").toFloats();
 * }
 * Safetensors.write(path, Map.of("source", "wiki"), Map.of("lambda", Tensor.ofFloats(lambda, 8, 128)));
 * }</pre>
 *
 * <p>Everything that a header says is checked against the length of the file before anything is allocated for it.
 * Tensors are read, not mapped: a file that somebody cuts short meanwhile is an exception and not a crash. Reads may
 * run on any thread.
 */
public final class Safetensors implements AutoCloseable {

  /** Longest header that is accepted, in bytes: what the format's own library accepts. */
  public static final long MAX_HEADER_BYTES = 100_000_000;

  private static final String METADATA = "__metadata__";
  private static final int LENGTH_BYTES = 8;

  /**
   * A tensor of a file.
   *
   * @param name its name
   * @param type the type of its elements
   * @param shape the sizes of its dimensions, outermost first
   * @param offset its first byte, from the beginning of the file
   * @param bytes how many bytes it has
   */
  public record Entry(String name, TensorType type, List<Long> shape, long offset, long bytes) {

    /**
     * Copies the shape.
     *
     * @param name its name
     * @param type the type of its elements
     * @param shape the sizes of its dimensions, outermost first
     * @param offset its first byte, from the beginning of the file
     * @param bytes how many bytes it has
     */
    public Entry {
      shape = List.copyOf(shape);
    }
  }

  private final Path path;
  private final Source source;
  private final Map<String, String> metadata;
  private final Map<String, Entry> entries;

  private Safetensors(Path path, Source source, Map<String, String> metadata, Map<String, Entry> entries) {
    this.path = path;
    this.source = source;
    this.metadata = Collections.unmodifiableMap(metadata);
    this.entries = Collections.unmodifiableMap(entries);
  }

  /**
   * Opens a file and reads its header.
   *
   * @param path the file
   * @return the open file
   * @throws SafetensorsException if it is not a valid safetensors file
   * @throws IOException if it cannot be read
   */
  public static Safetensors open(Path path) throws IOException {
    // Before it is opened: the opening of a pipe waits for somebody who writes to it.
    if (!Files.readAttributes(path, BasicFileAttributes.class).isRegularFile()) {
      throw new SafetensorsException(path, "it is no regular file", null);
    }
    Source source = new Source(path);
    try {
      return new Header(path, source).read();
    } catch (IOException | RuntimeException | Error e) {
      source.close();
      throw e;
    }
  }

  /**
   * The file.
   *
   * @return its path
   */
  public Path path() {
    return path;
  }

  /**
   * The texts of the header's {@code __metadata__}.
   *
   * @return texts by name, unmodifiable
   */
  public Map<String, String> metadata() {
    return metadata;
  }

  /**
   * The tensors, in the order of their data.
   *
   * @return tensors by name, unmodifiable
   */
  public Map<String, Entry> entries() {
    return entries;
  }

  /**
   * Reads a tensor into memory.
   *
   * @param name its name
   * @return the tensor
   * @throws SafetensorsException if there is no such tensor, it has more than 2 GiB or the file was cut short
   * @throws IOException if the file cannot be read
   */
  public Tensor read(String name) throws IOException {
    Entry entry = entry(name);
    if (entry.bytes > Integer.MAX_VALUE - 8) {
      throw new SafetensorsException(
          path, "\"" + Json.abbreviate(name) + "\" has " + entry.bytes + " bytes, more than an array holds", null);
    }
    byte[] bytes = new byte[(int) entry.bytes];
    read(name, ByteBuffer.wrap(bytes));
    return new Tensor(entry.type, entry.shape, bytes);
  }

  /**
   * Reads the bytes of a tensor to where the buffer stands, which stands behind them then.
   *
   * @param name its name
   * @param into where they go
   * @throws BufferOverflowException if the buffer has no room for all of them
   * @throws SafetensorsException if there is no such tensor or the file was cut short
   * @throws IOException if the file cannot be read
   */
  public void read(String name, ByteBuffer into) throws IOException {
    Entry entry = entry(name);
    if (entry.bytes > into.remaining()) {
      throw new BufferOverflowException();
    }
    try {
      source.read(entry.offset, (int) entry.bytes, into);
    } catch (EOFException e) {
      throw new SafetensorsException(path, "the file ends within \"" + Json.abbreviate(name) + "\"", e);
    }
  }

  private Entry entry(String name) throws SafetensorsException {
    Entry entry = entries.get(name);
    if (entry == null) {
      throw new SafetensorsException(path, "there is no tensor \"" + Json.abbreviate(name) + "\"", null);
    }
    return entry;
  }

  /** Closes the file. Tensors that were read stay valid. */
  @Override
  public void close() throws IOException {
    source.close();
  }

  @Override
  public String toString() {
    return "Safetensors[" + path + ", " + entries.size() + " tensors]";
  }

  /**
   * Writes a file, or replaces one. Whoever opens it meanwhile, or after a crash, finds the old file or the new one and
   * never a part: the data go to a temporary file in the same folder, to the disk, and then under the name. A symbolic
   * link stays one, and what it leads to is replaced; permissions stay as they were.
   *
   * @param path the file
   * @param metadata texts for the header
   * @param tensors tensors by name
   * @throws IllegalArgumentException if a tensor has the name {@code __metadata__} or the header would be too long
   * @throws NullPointerException if a name, a text or a tensor is null; an older file is then unchanged, too
   * @throws IOException if the file cannot be written; an older file is then unchanged
   */
  public static void write(Path path, Map<String, String> metadata, Map<String, Tensor> tensors) throws IOException {
    // The widest elements first, so that each tensor begins at a multiple of its element size.
    List<Map.Entry<String, Tensor>> ordered = new ArrayList<>(tensors.entrySet());
    for (Map.Entry<String, Tensor> entry : ordered) {
      Objects.requireNonNull(entry.getKey(), "the name of a tensor");
      Objects.requireNonNull(entry.getValue(), () -> "tensor \"" + Json.abbreviate(entry.getKey()) + "\"");
    }
    ordered.sort(Comparator.comparingInt(entry -> -entry.getValue().type().bytes()));
    byte[] header = header(metadata, ordered);
    FileReplacement.write(
        path,
        channel -> {
          ByteBuffer length = ByteBuffer.allocate(LENGTH_BYTES).order(ByteOrder.LITTLE_ENDIAN);
          writeFully(channel, length.putLong(0, header.length));
          writeFully(channel, ByteBuffer.wrap(header));
          for (Map.Entry<String, Tensor> entry : ordered) {
            writeFully(channel, entry.getValue().data());
          }
        });
  }

  private static byte[] header(Map<String, String> metadata, List<Map.Entry<String, Tensor>> tensors) {
    Map<String, Object> header = new LinkedHashMap<>();
    metadata.forEach(
        (name, text) -> {
          Objects.requireNonNull(name, "a name in the metadata");
          Objects.requireNonNull(text, () -> "the text of \"" + Json.abbreviate(name) + "\" in the metadata");
        });
    if (!metadata.isEmpty()) {
      header.put(METADATA, metadata);
    }
    long offset = 0;
    for (Map.Entry<String, Tensor> entry : tensors) {
      if (entry.getKey().equals(METADATA)) {
        throw new IllegalArgumentException("no tensor can have the name " + METADATA);
      }
      Tensor tensor = entry.getValue();
      long end = offset + tensor.data().capacity();
      Map<String, Object> description = new LinkedHashMap<>();
      description.put("dtype", tensor.type().name());
      description.put("shape", tensor.shape());
      description.put("data_offsets", List.of(offset, end));
      header.put(entry.getKey(), description);
      offset = end;
    }
    byte[] json = Json.write(header).getBytes(StandardCharsets.UTF_8);
    int padded = (json.length + 7) / 8 * 8;
    if (padded > MAX_HEADER_BYTES) {
      throw new IllegalArgumentException("a header of " + padded + " bytes, more than " + MAX_HEADER_BYTES);
    }
    byte[] result = new byte[padded];
    Arrays.fill(result, (byte) ' ');
    System.arraycopy(json, 0, result, 0, json.length);
    return result;
  }

  private static void writeFully(FileChannel channel, ByteBuffer bytes) throws IOException {
    while (bytes.hasRemaining()) {
      channel.write(bytes);
    }
  }

  /**
   * The file itself. Not a channel: an interrupt of one reader would close it for all. Reads take turns, in parts, so
   * that nobody waits for a whole tensor of another.
   */
  private static final class Source {
    private static final int PART = 1 << 20;

    private final RandomAccessFile file;

    Source(Path path) throws IOException {
      this.file = new RandomAccessFile(path.toFile(), "r");
    }

    long size() throws IOException {
      return file.length();
    }

    byte[] read(long position, int bytes) throws IOException {
      byte[] result = new byte[bytes];
      read(position, bytes, ByteBuffer.wrap(result));
      return result;
    }

    void read(long position, int bytes, ByteBuffer into) throws IOException {
      byte[] part = new byte[Math.min(PART, bytes)];
      for (int done = 0; done < bytes; ) {
        synchronized (file) {
          file.seek(position + done);
          int count = file.read(part, 0, Math.min(PART, bytes - done));
          if (count < 0) {
            throw new EOFException("the file ends at byte " + (position + done));
          }
          into.put(part, 0, count);
          done += count;
        }
      }
    }

    void close() throws IOException {
      file.close();
    }
  }

  /** The reading of a header. */
  private static final class Header {
    private final Path path;
    private final Source source;

    Header(Path path, Source source) {
      this.path = path;
      this.source = source;
    }

    Safetensors read() throws IOException {
      long size = source.size();
      if (size < LENGTH_BYTES) {
        throw invalid("the file has " + size + " bytes, too few for a header");
      }
      ByteBuffer length = ByteBuffer.wrap(source.read(0, LENGTH_BYTES)).order(ByteOrder.LITTLE_ENDIAN);
      long headerBytes = length.getLong(0);
      if (headerBytes < 0 || headerBytes > MAX_HEADER_BYTES) {
        throw invalid(
            "a header of " + Long.toUnsignedString(headerBytes) + " bytes; at most " + MAX_HEADER_BYTES
                + " are accepted");
      }
      if (headerBytes > size - LENGTH_BYTES) {
        throw invalid("a header of " + headerBytes + " bytes in a file of " + size + " bytes: it was cut short");
      }
      byte[] header = source.read(LENGTH_BYTES, (int) headerBytes);
      try {
        return parse(header, LENGTH_BYTES + headerBytes, size);
      } catch (Json.SyntaxException e) {
        throw new SafetensorsException(path, "in the header, " + e.getMessage(), e);
      } catch (IllegalArgumentException e) {
        throw new SafetensorsException(path, String.valueOf(e.getMessage()), e);
      }
    }

    private Safetensors parse(byte[] header, long data, long size) throws IOException, Json.SyntaxException {
      Map<String, String> metadata = new LinkedHashMap<>();
      List<Entry> entries = new ArrayList<>();
      for (Map.Entry<String, @Nullable Object> item : Json.object(Json.parse(header), "it").entrySet()) {
        String name = item.getKey();
        if (name.equals(METADATA)) {
          for (Map.Entry<String, @Nullable Object> text : Json.object(item.getValue(), METADATA).entrySet()) {
            metadata.put(text.getKey(), Json.string(text.getValue(), METADATA + "." + Json.abbreviate(text.getKey())));
          }
        } else {
          entries.add(entry(name, item.getValue(), data));
        }
      }
      entries.sort(Comparator.comparingLong(Entry::offset).thenComparingLong(Entry::bytes));
      // The format wants every byte to belong to exactly one tensor.
      long expected = data;
      for (Entry entry : entries) {
        if (entry.offset != expected) {
          throw invalid(
              quoted(entry.name) + " begins at byte " + (entry.offset - data) + " of the data, "
                  + (entry.offset < expected ? "within another tensor" : "after a hole") + ": "
                  + (expected - data) + " was expected");
        }
        expected += entry.bytes;
        if (expected > size) {
          throw invalid(
              quoted(entry.name) + " ends " + (expected - size) + " bytes after the end of the file: it was cut short");
        }
      }
      if (expected != size) {
        throw invalid((size - expected) + " bytes at the end belong to no tensor");
      }
      return new Safetensors(
          path,
          source,
          metadata,
          entries.stream()
              .collect(Collectors.toMap(Entry::name, entry -> entry, (a, b) -> a, LinkedHashMap::new)));
    }

    private Entry entry(String name, @Nullable Object value, long data) throws IOException, Json.SyntaxException {
      String what = quoted(name);
      Map<String, @Nullable Object> map = Json.object(value, what);
      if (!map.keySet().equals(Set.of("dtype", "shape", "data_offsets"))) {
        throw invalid(what + " is described by " + Json.abbreviate(map.keySet().toString()) + ", not by dtype, shape and data_offsets");
      }
      String dtype = Json.string(map.get("dtype"), what + ".dtype");
      TensorType type;
      try {
        type = TensorType.valueOf(dtype);
      } catch (IllegalArgumentException e) {
        throw invalid(what + " has the unknown dtype " + Json.abbreviate(dtype));
      }
      List<Long> shape = integers(map.get("shape"), what + ".shape");
      List<Long> offsets = integers(map.get("data_offsets"), what + ".data_offsets");
      if (offsets.size() != 2 || offsets.get(0) < 0 || offsets.get(1) < offsets.get(0)) {
        throw invalid(what + " has the data_offsets " + Json.abbreviate(offsets.toString()));
      }
      long bytes = offsets.get(1) - offsets.get(0);
      long needed;
      try {
        needed = Tensor.byteCount(type, shape);
      } catch (IllegalArgumentException e) {
        throw new SafetensorsException(path, what + ": " + e.getMessage(), e);
      }
      if (bytes != needed) {
        throw invalid(what + " has " + bytes + " bytes, but " + type + " " + Json.abbreviate(shape.toString()) + " needs " + needed);
      }
      if (offsets.get(0) > Long.MAX_VALUE - data - bytes) {
        throw invalid(what + " has the data_offsets " + Json.abbreviate(offsets.toString()));
      }
      return new Entry(name, type, shape, data + offsets.get(0), bytes);
    }

    private static List<Long> integers(@Nullable Object value, String what) throws Json.SyntaxException {
      List<Long> result = new ArrayList<>();
      for (Object element : Json.array(value, what)) {
        result.add(Json.integer(element, "an element of " + what));
      }
      return result;
    }

    private static String quoted(String name) {
      return "\"" + Json.abbreviate(name) + "\"";
    }

    private SafetensorsException invalid(String problem) {
      return new SafetensorsException(path, problem, null);
    }
  }
}
