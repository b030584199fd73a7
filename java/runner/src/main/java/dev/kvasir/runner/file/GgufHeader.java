package dev.kvasir.runner.file;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Reads what stands before the weights of a GGUF file: magic, version, counts, metadata, descriptions of tensors. Every
 * count and length is checked against the bytes that are left before anything is allocated for it.
 */
final class GgufHeader {

  private static final int MAGIC = 0x46554747; // "GGUF"
  private static final int DEFAULT_ALIGNMENT = 32;
  /** Longest text; vocabularies and templates are far below. */
  private static final int MAX_TEXT = 1 << 24;
  /** Most elements of an array; the longest vocabularies have some 300,000. */
  private static final int MAX_ARRAY = 1 << 22;
  private static final int MAX_TENSORS = 1 << 17;

  private final Path path;
  private final RandomAccessFile file;
  private final FileChannel channel;
  private final long size;
  private final ByteBuffer buffer = ByteBuffer.allocate(1 << 16).order(ByteOrder.LITTLE_ENDIAN).limit(0);
  /** The file position of the buffer's end. */
  private long filled;

  GgufHeader(Path path, RandomAccessFile file) throws IOException {
    this.path = path;
    this.file = file;
    this.channel = file.getChannel();
    this.size = channel.size();
  }

  Gguf read(boolean copied) throws IOException {
    if (size < 24 || int32() != MAGIC) {
      throw wrong("this is no GGUF file");
    }
    int version = int32();
    if (version != 2 && version != 3) {
      throw wrong("GGUF of version " + Integer.toUnsignedString(version) + "; 2 and 3 can be read, little-endian");
    }
    // The shortest tensor takes 24 bytes, the shortest pair of key and value 13.
    long tensorCount = count("tensors", int64(), 24, MAX_TENSORS);
    long pairs = count("keys", int64(), 13, MAX_TENSORS);
    Map<String, Object> metadata = new LinkedHashMap<>();
    for (long i = 0; i < pairs; i++) {
      String key = text();
      if (metadata.put(key, value(key, int32())) != null) {
        throw wrong("\"" + shown(key) + "\" stands there twice");
      }
    }
    record Description(int type, long[] shape, long offset) {}
    Map<String, Description> described = new LinkedHashMap<>();
    for (long i = 0; i < tensorCount; i++) {
      String name = text();
      long[] shape = shape(name, int32());
      if (described.put(name, new Description(int32(), shape, int64())) != null) {
        throw wrong("\"" + shown(name) + "\" stands there twice");
      }
    }
    long alignment = alignment(metadata);
    long data = (position() + alignment - 1) / alignment * alignment;
    Map<String, Gguf.Entry> tensors = new LinkedHashMap<>();
    for (Map.Entry<String, Description> item : described.entrySet()) {
      Description found = item.getValue();
      tensors.put(item.getKey(), entry(item.getKey(), found.type(), found.shape(), found.offset(), data, alignment));
    }
    return new Gguf(path, file, copied, metadata, tensors);
  }

  private Gguf.Entry entry(String name, int code, long[] shape, long offset, long data, long alignment)
      throws ModelException {
    long rows = 1;
    try {
      for (int i = 1; i < shape.length; i++) {
        rows = Math.multiplyExact(rows, shape[i]);
      }
      // A type that cannot be run is refused by whoever needs the tensor; its size is not known here.
      WeightType type = WeightType.of(code).orElse(null);
      long bytes = 0;
      if (type != null) {
        if (shape[0] % type.blockWeights() != 0) {
          throw wrong(
              "\"" + shown(name) + "\" has rows of " + shape[0] + ", no whole blocks of " + type);
        }
        bytes = Math.multiplyExact(Math.multiplyExact(shape[0] / type.blockWeights(), type.blockBytes()), rows);
      }
      if (offset < 0 || offset % alignment != 0 || offset > size - data || bytes > size - data - offset) {
        throw wrong(
            "\"" + shown(name) + "\" has " + bytes + " bytes from byte " + Long.toUnsignedString(offset)
                + " on, but there are " + Math.max(0, size - data) + ", aligned to " + alignment);
      }
      return new Gguf.Entry(code, rows, shape[0], data + offset, bytes);
    } catch (ArithmeticException e) {
      throw wrong("\"" + shown(name) + "\" has more weights than can be counted");
    }
  }

  private long[] shape(String name, int dimensions) throws IOException {
    if (dimensions < 1 || dimensions > 4) {
      throw wrong("\"" + shown(name) + "\" has " + Integer.toUnsignedString(dimensions) + " dimensions");
    }
    long[] shape = new long[dimensions];
    for (int i = 0; i < dimensions; i++) {
      shape[i] = int64();
      if (shape[i] < 1) {
        throw wrong("\"" + shown(name) + "\" has a dimension of " + Long.toUnsignedString(shape[i]));
      }
    }
    return shape;
  }

  private long alignment(Map<String, Object> metadata) throws ModelException {
    Object value = metadata.getOrDefault("general.alignment", (long) DEFAULT_ALIGNMENT);
    if (!(value instanceof Long number) || number < 1 || number > 1 << 16 || Long.bitCount(number) != 1) {
      throw wrong("general.alignment is " + value);
    }
    return number;
  }

  private Object value(String key, int type) throws IOException {
    switch (type) {
      case 0:
        return (long) (int8() & 0xFF);
      case 1:
        return (long) int8();
      case 2:
        return (long) (int16() & 0xFFFF);
      case 3:
        return (long) int16();
      case 4:
        return int32() & 0xFFFFFFFFL;
      case 5:
        return (long) int32();
      case 6:
        return (double) Float.intBitsToFloat(int32());
      case 7:
        return flag(key);
      case 8:
        return text();
      case 9:
        return array(key);
      case 10:
      case 11:
        return int64(); // what does not fit is negative, and refused by whoever wants it
      case 12:
        return Double.longBitsToDouble(int64());
      default:
        throw wrong("\"" + shown(key) + "\" has a value of type " + Integer.toUnsignedString(type));
    }
  }

  private boolean flag(String key) throws IOException {
    byte value = int8();
    if (value != 0 && value != 1) {
      throw wrong("\"" + shown(key) + "\" is " + value + ", neither true nor false");
    }
    return value == 1;
  }

  private Object array(String key) throws IOException {
    int type = int32();
    long given = int64();
    if (type == 8) {
      String[] texts = new String[(int) count("elements of " + shown(key), given, 8, MAX_ARRAY)];
      for (int i = 0; i < texts.length; i++) {
        texts[i] = text();
      }
      return texts;
    }
    if (type == 9) {
      throw wrong("\"" + shown(key) + "\" is an array of arrays");
    }
    double[] numbers = new double[(int) count("elements of " + shown(key), given, 1, MAX_ARRAY)];
    for (int i = 0; i < numbers.length; i++) {
      Object element = value(key, type);
      numbers[i] = element instanceof Number number ? number.doubleValue() : Boolean.TRUE.equals(element) ? 1 : 0;
    }
    return numbers;
  }

  private long count(String what, long given, int leastBytes, long most) throws ModelException {
    if (given < 0 || given > most || given > (size - position()) / leastBytes) {
      throw wrong(Long.toUnsignedString(given) + " " + what + " in a file of " + size + " bytes");
    }
    return given;
  }

  private String text() throws IOException {
    long length = int64();
    if (length < 0 || length > MAX_TEXT || length > size - position()) {
      throw wrong("a text of " + Long.toUnsignedString(length) + " bytes in a file of " + size + " bytes");
    }
    byte[] bytes = new byte[(int) length];
    for (int done = 0; done < bytes.length; ) {
      need(1);
      int part = Math.min(bytes.length - done, buffer.remaining());
      buffer.get(bytes, done, part);
      done += part;
    }
    try {
      return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString();
    } catch (CharacterCodingException e) {
      throw wrong("a text that is not UTF-8 before byte " + position());
    }
  }

  private byte int8() throws IOException {
    need(1);
    return buffer.get();
  }

  private short int16() throws IOException {
    need(2);
    return buffer.getShort();
  }

  private int int32() throws IOException {
    need(4);
    return buffer.getInt();
  }

  private long int64() throws IOException {
    need(8);
    return buffer.getLong();
  }

  private long position() {
    return filled - buffer.remaining();
  }

  private void need(int bytes) throws IOException {
    if (buffer.remaining() >= bytes) {
      return;
    }
    buffer.compact();
    while (buffer.position() < bytes) {
      int read = channel.read(buffer, filled);
      if (read < 0) {
        throw wrong("the file ends at byte " + filled + ", within its header");
      }
      filled += read;
    }
    buffer.flip();
  }

  private static String shown(String name) {
    return name.length() <= 80 ? name : name.substring(0, 80) + "...";
  }

  private ModelException wrong(String what) {
    return new ModelException(path + ": " + what);
  }
}
