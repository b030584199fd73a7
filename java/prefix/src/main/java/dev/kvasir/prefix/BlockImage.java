package dev.kvasir.prefix;

import dev.kvasir.file.ChainHash;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.BitSet;
import java.util.zip.CRC32C;

/**
 * What can be seen of a block without a cache: whether it is the one that was asked for, whether it is damaged, which
 * layers have a page in it. {@code docs/format.md} has the layout. All else is checked where the block is attached.
 */
final class BlockImage {

  private static final byte[] MAGIC = {'k', 'v', 'i', 'm', 'a', 'g', 'e', '\n'};
  private static final int HEAD = 256;
  private static final int ENTRY = 32;
  private static final int TYPE_BLOCK = 2;
  private static final int KIND_PAGE = 3;

  private final ByteBuffer bytes;

  BlockImage(ByteBuffer image) {
    this.bytes = image.slice().order(ByteOrder.LITTLE_ENDIAN);
  }

  /** Whether its head is whole and says that it is this block. */
  boolean is(ChainHash name, int number, byte[] fingerprint) {
    return bytes.remaining() >= HEAD
        && Arrays.equals(part(0, MAGIC.length), MAGIC)
        && bytes.getInt(8) == 1
        && bytes.getInt(12) == TYPE_BLOCK
        && bytes.getLong(16) == bytes.remaining()
        && bytes.getLong(24) == number
        && Arrays.equals(part(64, 32), fingerprint)
        && Arrays.equals(part(96, 32), name.bytes())
        && headSum() == bytes.getInt(40);
  }

  /** Whether every byte of it is as its checksums say. Of an image whose head is whole. */
  boolean isWhole() {
    long parts = Integer.toUnsignedLong(bytes.getInt(32));
    if (parts > (bytes.remaining() - HEAD) / ENTRY || sum(HEAD, (int) parts * ENTRY) != bytes.getInt(36)) {
      return false;
    }
    for (int i = 0; i < parts; i++) {
      int entry = HEAD + i * ENTRY;
      long offset = bytes.getLong(entry + 16);
      long size = bytes.getLong(entry + 24);
      if (offset < 0 || size < 0 || offset > bytes.remaining() || size > bytes.remaining() - offset) {
        return false;
      }
      if (sum((int) offset, (int) size) != bytes.getInt(entry + 12)) {
        return false;
      }
    }
    return true;
  }

  /** The layers that have a page in it. Of an image whose head is whole; of a damaged one, whatever it says. */
  BitSet layersWithPages() {
    BitSet layers = new BitSet();
    long parts = Math.min(Integer.toUnsignedLong(bytes.getInt(32)), (bytes.remaining() - HEAD) / ENTRY);
    for (int i = 0; i < parts; i++) {
      int entry = HEAD + i * ENTRY;
      int layer = bytes.getInt(entry + 4);
      if (bytes.getInt(entry) == KIND_PAGE && layer >= 0 && layer < 1 << 16) {
        layers.set(layer);
      }
    }
    return layers;
  }

  private byte[] part(int offset, int size) {
    byte[] copy = new byte[size];
    bytes.get(offset, copy);
    return copy;
  }

  private int headSum() {
    byte[] head = part(0, HEAD);
    Arrays.fill(head, 40, 44, (byte) 0);
    CRC32C crc = new CRC32C();
    crc.update(head);
    return (int) crc.getValue();
  }

  private int sum(int offset, int size) {
    CRC32C crc = new CRC32C();
    crc.update(bytes.slice(offset, size));
    return (int) crc.getValue();
  }
}
