package dev.kvasir.internal.file;

import dev.kvasir.error.KvFileException;
import dev.kvasir.error.KvFileException.Reason;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.zip.CRC32C;

/**
 * The container of docs/format.md, "Images". Native code writes and reads those of blocks and states; files need some more
 * of them, and want to check all without a cache.
 */
public final class Image {

  static final int HEAD_BYTES = 256;
  static final int ENTRY_BYTES = 32;
  static final int ALIGNMENT = 64;
  private static final int VERSION = 1;
  private static final byte[] MAGIC = "kvimage\n".getBytes(StandardCharsets.US_ASCII);
  private static final int HEAD_CRC_AT = 40;
  private static final int FINGERPRINT_AT = 64;
  private static final int END_AT = 192;

  /** What images are of; their numbers are those of the format. */
  public enum Type {
    HEADER,
    BLOCK,
    STATE,
    TOKENS,
    INDEX;

    int code() {
      return ordinal() + 1;
    }
  }

  static final int TEXT_PART = 9;
  static final int TOKENS_PART = 10;
  static final int ENTRIES_PART = 11;

  /** The first 256 bytes, checked. */
  public record Head(Type type, long bytes, long number, int parts, int tableCrc, int headCrc, byte[] fingerprint) {}

  /** An entry of the table. */
  public record Part(int kind, int layer, int crc, long offset, long bytes) {}

  private Image() {}

  static long aligned(long bytes, int alignment) {
    return (bytes + alignment - 1) / alignment * alignment;
  }

  /** Of the first 256 bytes. Throws KvFileException. */
  static Head head(ByteBuffer bytes) {
    ByteBuffer head = bytes.slice(0, HEAD_BYTES).order(ByteOrder.LITTLE_ENDIAN);
    byte[] magic = new byte[MAGIC.length];
    head.get(0, magic);
    if (!Arrays.equals(magic, MAGIC)) {
      throw bad(Reason.FOREIGN, "an image does not begin as one");
    }
    int crc = head.getInt(HEAD_CRC_AT);
    if (crc != headCrc(head)) {
      throw bad(Reason.CHECKSUM, "the head of an image is damaged");
    }
    int version = head.getInt(8);
    if (version != VERSION) {
      throw bad(Reason.VERSION, "an image of version " + version + ", and this library knows version " + VERSION);
    }
    int type = head.getInt(12);
    if (type < 1 || type > Type.values().length || !zero(head, HEAD_CRC_AT + 4, FINGERPRINT_AT) || !zero(head, END_AT, HEAD_BYTES)) {
      throw bad(Reason.INVALID, "an image of type " + type + ", or with more in its head than there is room for");
    }
    byte[] fingerprint = new byte[32];
    head.get(FINGERPRINT_AT, fingerprint);
    return new Head(
        Type.values()[type - 1], head.getLong(16), head.getLong(24), head.getInt(32), head.getInt(36), crc, fingerprint);
  }

  /** All of an image, whose head is known: every checksum, every gap. Throws KvFileException. */
  static List<Part> verify(Head head, ByteBuffer image) {
    ByteBuffer all = image.slice(0, Math.toIntExact(head.bytes())).order(ByteOrder.LITTLE_ENDIAN);
    long parts = head.parts() & 0xFFFFFFFFL;
    long first = HEAD_BYTES + aligned(parts * ENTRY_BYTES, ALIGNMENT);
    if (first > head.bytes()) {
      throw bad(Reason.INVALID, "an image whose sizes contradict each other");
    }
    int tableEnd = (int) (HEAD_BYTES + parts * ENTRY_BYTES);
    if (crc(all.slice(HEAD_BYTES, tableEnd - HEAD_BYTES)) != head.tableCrc() || !zero(all, tableEnd, (int) first)) {
      throw bad(Reason.CHECKSUM, "the table of an image is damaged");
    }
    List<Part> list = new ArrayList<>();
    long at = first;
    for (int i = 0; i < parts; i++) {
      int entry = HEAD_BYTES + i * ENTRY_BYTES;
      Part part =
          new Part(
              all.getInt(entry),
              all.getInt(entry + 4),
              all.getInt(entry + 12),
              all.getLong(entry + 16),
              all.getLong(entry + 24));
      if (part.offset() != at || part.bytes() < 0 || part.bytes() > head.bytes() - at) {
        throw bad(Reason.INVALID, "part " + i + " of an image does not lie in it");
      }
      long end = aligned(at + part.bytes(), ALIGNMENT);
      if (end > head.bytes()
          || crc(all.slice((int) at, (int) part.bytes())) != part.crc()
          || !zero(all, (int) (at + part.bytes()), (int) end)) {
        throw bad(Reason.CHECKSUM, "part " + i + " of an image, of layer " + part.layer() + ", is damaged");
      }
      list.add(part);
      at = end;
    }
    if (at != head.bytes()) {
      throw bad(Reason.INVALID, "an image that does not end with its last part");
    }
    return list;
  }

  /** The content of the only part, which is of this kind. */
  static ByteBuffer only(List<Part> parts, int kind, ByteBuffer image) {
    if (parts.size() != 1 || parts.get(0).kind() != kind) {
      throw bad(Reason.INVALID, "an image without its one part of kind " + kind);
    }
    Part part = parts.get(0);
    return image.slice((int) part.offset(), (int) part.bytes()).order(ByteOrder.LITTLE_ENDIAN);
  }

  /** An image of one part. */
  static ByteBuffer of(Type type, byte[] fingerprint, int kind, ByteBuffer content) {
    int first = HEAD_BYTES + ALIGNMENT;
    int bytes = Math.toIntExact(aligned(first + (long) content.remaining(), ALIGNMENT));
    ByteBuffer image = ByteBuffer.allocate(bytes).order(ByteOrder.LITTLE_ENDIAN);
    image.put(first, content, content.position(), content.remaining());
    image.putInt(HEAD_BYTES, kind);
    image.putInt(HEAD_BYTES + 12, crc(image.slice(first, content.remaining())));
    image.putLong(HEAD_BYTES + 16, first);
    image.putLong(HEAD_BYTES + 24, content.remaining());
    image.put(0, MAGIC);
    image.putInt(8, VERSION);
    image.putInt(12, type.code());
    image.putLong(16, bytes);
    image.putInt(32, 1);
    image.putInt(36, crc(image.slice(HEAD_BYTES, ENTRY_BYTES)));
    image.put(FINGERPRINT_AT, fingerprint);
    image.putInt(HEAD_CRC_AT, headCrc(image));
    return image;
  }

  static int crc(ByteBuffer bytes) {
    CRC32C crc = new CRC32C();
    crc.update(bytes.duplicate());
    return (int) crc.getValue();
  }

  static boolean zero(ByteBuffer bytes, int from, int to) {
    for (int i = from; i < to; i++) {
      if (bytes.get(i) != 0) {
        return false;
      }
    }
    return true;
  }

  static KvFileException bad(Reason reason, String message) {
    return new KvFileException(reason, message, null);
  }

  private static int headCrc(ByteBuffer image) {
    byte[] head = new byte[HEAD_BYTES];
    image.get(0, head);
    Arrays.fill(head, HEAD_CRC_AT, HEAD_CRC_AT + 4, (byte) 0);
    return crc(ByteBuffer.wrap(head));
  }
}
