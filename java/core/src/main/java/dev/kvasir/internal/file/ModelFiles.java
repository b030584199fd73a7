package dev.kvasir.internal.file;

import dev.kvasir.internal.json.Json;
import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;

/**
 * Which files a model is made of, where one of them, or a folder, stands for all: GGUF in several files by the first, and
 * the layout of Hugging Face by its folder. A part is never taken for the whole.
 */
public final class ModelFiles {

  private static final String CONFIG = "config.json";
  private static final String SINGLE = "model.safetensors";
  private static final String INDEX = "model.safetensors.index.json";
  private static final long MOST_INDEX_BYTES = 100_000_000;

  private static final int MAGIC = 0x46554747; // "GGUF"
  private static final int MOST_PARTS = 1 << 10;
  private static final int MOST_KEY_BYTES = 65535;
  private static final int TEXT = 8;
  private static final int ARRAY = 9;
  /** Bytes of a GGUF value by its type; 0 for texts and arrays. */
  private static final int[] BYTES = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

  private static final int MOST_DEPTH = 4;

  /** What a GGUF file says of itself: that it is this part, counted from 0, of so many. */
  private record Part(long number, long count) {}

  private ModelFiles() {}

  /**
   * The files that these stand for, in their order.
   *
   * @throws IOException if one cannot be read, or a part of a model is given without the others, or they are missing
   */
  public static List<Path> of(List<Path> given) throws IOException {
    Set<Path> known = given.stream().map(ModelFiles::plain).collect(Collectors.toSet());
    List<Path> all = new ArrayList<>();
    for (Path each : given) {
      if (Files.isDirectory(each)) {
        all.addAll(ofFolder(each));
        continue;
      }
      all.add(each);
      Part part = partOf(each);
      if (part != null) {
        all.addAll(othersOf(each, part, known));
      } else if (each.toString().endsWith(".safetensors")) {
        requireShards(each, known);
      }
    }
    return all;
  }

  private static Path plain(Path path) {
    return path.toAbsolutePath().normalize();
  }

  /** Those that the first of several files stands for: none where they are given themselves. */
  private static List<Path> othersOf(Path file, Part part, Set<Path> known) throws IOException {
    String name = String.valueOf(file.getFileName());
    String end = end(part.number, part.count);
    if (part.count < 0 || part.count > MOST_PARTS || part.number < 0 || part.number >= part.count || !name.endsWith(end)) {
      throw new IOException(
          file + ": split.no is " + part.number + " and split.count " + part.count + "; a model of several files, up to "
              + MOST_PARTS + ", has names that end in " + end(0, part.count) + " and so on");
    }
    String stem = name.substring(0, name.length() - end.length());
    Path first = file.resolveSibling(stem + end(0, part.count));
    if (part.number > 0) {
      if (!known.contains(plain(first))) {
        throw new IOException(file + " is a part of a model, for which " + first + " stands");
      }
      return List.of(); // the first sees to it
    }
    List<Path> others = new ArrayList<>();
    for (int i = 1; i < part.count; i++) {
      Path other = file.resolveSibling(stem + end(i, part.count));
      if (Files.notExists(other)) {
        throw new NoSuchFileException(other.toString());
      }
      Part found = partOf(other);
      if (found == null || found.number != i || found.count != part.count) {
        throw new IOException(
            other + ": split.no and split.count are " + (found == null ? "missing" : found.number + " and " + found.count)
                + ", not " + i + " and " + part.count);
      }
      others.add(other);
    }
    long given = others.stream().filter(other -> known.contains(plain(other))).count();
    if (given > 0 && given < others.size()) {
      throw new IOException(file + " is given with " + given + " of the " + others.size() + " other parts of its model");
    }
    return given == 0 ? others : List.of();
  }

  private static String end(long number, long count) {
    return String.format(Locale.ROOT, "-%05d-of-%05d.gguf", number + 1, count);
  }

  /** What decides keys and values: the configuration, and the weights. */
  private static List<Path> ofFolder(Path folder) throws IOException {
    List<Path> all = new ArrayList<>(List.of(folder.resolve(CONFIG)));
    if (Files.exists(folder.resolve(INDEX))) {
      shards(folder).forEach(name -> all.add(folder.resolve(name)));
    } else {
      all.add(folder.resolve(SINGLE));
    }
    for (Path each : all) {
      if (Files.notExists(each)) {
        throw new NoSuchFileException(each.toString());
      }
    }
    return all;
  }

  private static void requireShards(Path file, Set<Path> known) throws IOException {
    Path folder = plain(file).getParent();
    if (folder == null || !Files.exists(folder.resolve(INDEX))) {
      return;
    }
    Set<String> shards = shards(folder);
    if (shards.contains(String.valueOf(file.getFileName()))
        && !shards.stream().allMatch(name -> known.contains(folder.resolve(name)))) {
      throw new IOException(
          file + " is one of the " + shards.size() + " files of a model's weights, for which the folder " + folder + " stands");
    }
  }

  /** The files of an index, by name. */
  private static Set<String> shards(Path folder) throws IOException {
    Path index = folder.resolve(INDEX);
    if (Files.size(index) > MOST_INDEX_BYTES) {
      throw new IOException(index + ": an index of " + Files.size(index) + " bytes");
    }
    Set<String> names = new TreeSet<>();
    try {
      Map<String, @Nullable Object> root = Json.object(Json.parse(Files.readAllBytes(index)), "it");
      for (Object value : Json.object(root.get("weight_map"), "weight_map").values()) {
        String name = Json.string(value, "a file name in weight_map");
        if (name.isEmpty() || name.startsWith(".") || name.matches("(?s).*[/\\\\\0].*")) {
          throw new IOException(index + ": \"" + Json.abbreviate(name) + "\" is no file of this folder");
        }
        names.add(name);
      }
    } catch (Json.SyntaxException e) {
      throw new IOException(index + ": " + e.getMessage(), e);
    }
    return names;
  }

  /** Which part of a model a file is, or null where it is a whole one, or no GGUF file. */
  private static @Nullable Part partOf(Path file) throws IOException {
    try (InputStream in = Files.newInputStream(file)) {
      return new Header(file, Files.size(file), new DataInputStream(new BufferedInputStream(in, 1 << 16))).part();
    }
  }

  /** What stands before the weights of a GGUF file. */
  private record Header(Path file, long size, DataInputStream data) {

    @Nullable Part part() throws IOException {
      if (size < 24 || int32() != MAGIC) {
        return null;
      }
      int version = int32();
      if (version != 2 && version != 3) {
        return null; // older ones know no parts
      }
      try {
        return part(int64(), int64());
      } catch (EOFException e) {
        throw new IOException(file + ": the file ends within its header", e);
      }
    }

    private @Nullable Part part(long tensors, long pairs) throws IOException {
      long number = 0;
      long count = 1;
      for (long i = 0; i < pairs; i++) {
        String key = key();
        int type = int32();
        switch (key) {
          case "split.no" -> number = integer(key, type);
          case "split.count" -> count = integer(key, type);
          default -> skip(type, MOST_DEPTH);
        }
      }
      return count == 0 || count == 1 ? null : new Part(number, count);
    }

    private String key() throws IOException {
      long length = length();
      if (length > MOST_KEY_BYTES) {
        throw new IOException(file + ": a key of " + length + " bytes in its header, not up to " + MOST_KEY_BYTES);
      }
      return new String(data.readNBytes((int) length), StandardCharsets.UTF_8);
    }

    private long integer(String key, int type) throws IOException {
      return switch (type) {
        case 0 -> data.readByte() & 0xFF;
        case 1 -> data.readByte();
        case 2 -> Short.reverseBytes(data.readShort()) & 0xFFFF;
        case 3 -> Short.reverseBytes(data.readShort());
        case 4 -> int32() & 0xFFFFFFFFL;
        case 5 -> int32();
        case 10, 11 -> int64();
        default -> throw new IOException(file + ": " + key + " is not a whole number");
      };
    }

    private void skip(int type, int depth) throws IOException {
      if (type < 0 || type >= BYTES.length || depth == 0) {
        throw new IOException(file + ": a value of type " + Integer.toUnsignedString(type) + " in its header");
      }
      if (type == TEXT) {
        data.skipNBytes(length());
      } else if (type != ARRAY) {
        data.skipNBytes(BYTES[type]);
      } else {
        int of = int32();
        long elements = length();
        if (of >= 0 && of < BYTES.length && BYTES[of] > 0) {
          data.skipNBytes(elements * BYTES[of]);
          return;
        }
        for (long i = 0; i < elements; i++) {
          skip(of, depth - 1);
        }
      }
    }

    /** One that the file can have. */
    private long length() throws IOException {
      long length = int64();
      if (length < 0 || length > size) {
        throw new IOException(
            file + ": a length of " + Long.toUnsignedString(length) + " in the header of a file of " + size + " bytes");
      }
      return length;
    }

    private int int32() throws IOException {
      return Integer.reverseBytes(data.readInt());
    }

    private long int64() throws IOException {
      return Long.reverseBytes(data.readLong());
    }
  }
}
