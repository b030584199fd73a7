package dev.kvasir.runner;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Writes small GGUF files, right ones and wrong ones. */
public final class GgufWriter {

  /** A tensor: its type's number, its shape, outermost first, and its bytes. */
  private record Entry(int type, List<Long> shape, byte[] bytes) {}

  private final Map<String, byte[]> metadata = new LinkedHashMap<>();
  private final Map<String, Entry> tensors = new LinkedHashMap<>();

  public void text(String key, String value) {
    metadata.put(key, joined(int32(8), string(value)));
  }

  public void integer(String key, int value) {
    metadata.put(key, joined(int32(4), int32(value)));
  }

  public void number(String key, float value) {
    metadata.put(key, joined(int32(6), int32(Float.floatToIntBits(value))));
  }

  public void flag(String key, boolean value) {
    metadata.put(key, joined(int32(7), new byte[] {(byte) (value ? 1 : 0)}));
  }

  public void texts(String key, List<String> values) {
    List<byte[]> parts = new ArrayList<>(List.of(int32(9), int32(8), int64(values.size())));
    values.forEach(value -> parts.add(string(value)));
    metadata.put(key, joined(parts.toArray(byte[][]::new)));
  }

  public void numbers(String key, float... values) {
    List<byte[]> parts = new ArrayList<>(List.of(int32(9), int32(6), int64(values.length)));
    for (float value : values) {
      parts.add(int32(Float.floatToIntBits(value)));
    }
    metadata.put(key, joined(parts.toArray(byte[][]::new)));
  }

  public void integers(String key, int... values) {
    List<byte[]> parts = new ArrayList<>(List.of(int32(9), int32(5), int64(values.length)));
    for (int value : values) {
      parts.add(int32(value));
    }
    metadata.put(key, joined(parts.toArray(byte[][]::new)));
  }

  public void remove(String key) {
    metadata.remove(key);
    tensors.remove(key);
  }

  public void floats(String name, float[] values, List<Long> shape) {
    ByteBuffer bytes = ByteBuffer.allocate(4 * values.length).order(ByteOrder.LITTLE_ENDIAN);
    for (float value : values) {
      bytes.putFloat(value);
    }
    tensor(name, 0, bytes.array(), shape);
  }

  public void tensor(String name, int type, byte[] bytes, List<Long> shape) {
    tensors.put(name, new Entry(type, shape, bytes));
  }

  /** The same in several files: metadata are in the first, tensors in all of them by turns, or in all others. */
  public List<GgufWriter> split(int files, boolean inFirst) {
    List<GgufWriter> parts = new ArrayList<>();
    for (int i = 0; i < files; i++) {
      GgufWriter part = new GgufWriter();
      part.metadata.putAll(i == 0 ? metadata : Map.of());
      part.integer("split.no", i);
      part.integer("split.count", files);
      part.integer("split.tensors.count", tensors.size());
      parts.add(part);
    }
    int turn = 0;
    int first = inFirst ? 0 : 1;
    for (Map.Entry<String, Entry> item : tensors.entrySet()) {
      parts.get(first + turn++ % (files - first)).tensors.put(item.getKey(), item.getValue());
    }
    return parts;
  }

  public void write(Path file) throws IOException {
    Files.write(file, bytes());
  }

  public byte[] bytes() {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    out.writeBytes("GGUF".getBytes(StandardCharsets.US_ASCII));
    out.writeBytes(int32(3));
    out.writeBytes(int64(tensors.size()));
    out.writeBytes(int64(metadata.size()));
    metadata.forEach((key, value) -> out.writeBytes(joined(string(key), value)));
    long offset = 0;
    for (Map.Entry<String, Entry> item : tensors.entrySet()) {
      Entry entry = item.getValue();
      out.writeBytes(joined(string(item.getKey()), int32(entry.shape().size())));
      for (int i = entry.shape().size() - 1; i >= 0; i--) {
        out.writeBytes(int64(entry.shape().get(i)));
      }
      out.writeBytes(joined(int32(entry.type()), int64(offset)));
      offset += (entry.bytes().length + 31) / 32 * 32;
    }
    for (Entry entry : tensors.values()) {
      out.writeBytes(new byte[(32 - out.size() % 32) % 32]);
      out.writeBytes(entry.bytes());
    }
    return out.toByteArray();
  }

  /** A vocabulary of bytes: token b is byte b, those above 255 are special. */
  static void bytes(GgufWriter out, int size, int bos) {
    List<String> tokens = new ArrayList<>();
    int[] types = new int[size];
    for (int i = 0; i < size; i++) {
      tokens.add(i < 256 ? String.format("<0x%02X>", i) : "<special " + i + ">");
      types[i] = i < 256 ? 6 : 3;
    }
    out.text("tokenizer.ggml.model", "llama");
    out.texts("tokenizer.ggml.tokens", tokens);
    out.numbers("tokenizer.ggml.scores", new float[size]);
    out.integers("tokenizer.ggml.token_type", types);
    out.flag("tokenizer.ggml.add_space_prefix", false);
    out.integer("tokenizer.ggml.bos_token_id", bos);
    out.integer("tokenizer.ggml.eos_token_id", bos + 1);
  }

  private static byte[] string(String text) {
    byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
    return joined(int64(bytes.length), bytes);
  }

  private static byte[] int32(int value) {
    return ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN).putInt(value).array();
  }

  private static byte[] int64(long value) {
    return ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(value).array();
  }

  private static byte[] joined(byte[]... parts) {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    for (byte[] part : parts) {
      out.writeBytes(part);
    }
    return out.toByteArray();
  }
}
