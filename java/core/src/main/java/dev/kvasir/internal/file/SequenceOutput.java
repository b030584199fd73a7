package dev.kvasir.internal.file;

import dev.kvasir.error.KvFileException.Reason;
import dev.kvasir.internal.NativeSaving;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.WritableByteChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** Writes a sequence as a file, from the first byte to the last. */
public final class SequenceOutput {

  static final int PAGE = 4096;
  static final int TRAILER_BYTES = 64;
  static final int ENTRY_BYTES = 24;
  static final byte[] END = "kvasirND".getBytes(StandardCharsets.US_ASCII);

  private final WritableByteChannel channel;
  private final Transfer transfer;
  private final List<ByteBuffer> entries = new ArrayList<>();
  private long position;
  private long total = -1;
  private ByteBuffer buffer = ByteBuffer.allocateDirect(1 << 16);

  private SequenceOutput(WritableByteChannel channel, Transfer transfer) {
    this.channel = channel;
    this.transfer = transfer;
  }

  /** All of it, with these token ids, if any. The hashes name its blocks; there may be fewer of them, or none. */
  public static void write(
      NativeSaving saving, WritableByteChannel channel, Transfer transfer, int[] tokens, List<byte[]> hashes)
      throws IOException {
    new SequenceOutput(channel, transfer).write(saving, tokens, hashes);
  }

  private void write(NativeSaving saving, int[] tokens, List<byte[]> hashes) throws IOException {
    byte[] fingerprint = saving.fingerprint();
    total = saving.bytes();
    image(Image.of(Image.Type.HEADER, fingerprint, Image.TEXT_PART, StandardCharsets.UTF_8.encode(saving.description())));
    for (long block = 0; block < saving.blocks(); block++) {
      byte @Nullable [] chain = block < hashes.size() ? hashes.get((int) block) : null;
      long number = block;
      image(fill(into -> saving.writeBlock(number, chain, into)));
    }
    if (tokens.length > 0) {
      ByteBuffer ids = ByteBuffer.allocate(Math.multiplyExact(tokens.length, Integer.BYTES)).order(ByteOrder.LITTLE_ENDIAN);
      ids.asIntBuffer().put(tokens);
      image(Image.of(Image.Type.TOKENS, fingerprint, Image.TOKENS_PART, ids));
    }
    image(fill(saving::writeState));
    ByteBuffer index = ByteBuffer.allocate(Math.multiplyExact(entries.size(), ENTRY_BYTES));
    entries.forEach(entry -> index.put(entry.flip()));
    long at = Image.aligned(position, PAGE);
    image(Image.of(Image.Type.INDEX, fingerprint, Image.ENTRIES_PART, index.flip()));
    put(trailer(at, position + TRAILER_BYTES));
  }

  private interface Filler {
    /** The bytes that it needs; it has written them where there is room. */
    int fill(ByteBuffer into);
  }

  private ByteBuffer fill(Filler filler) {
    int bytes = filler.fill(buffer);
    while (bytes > buffer.capacity()) {
      buffer = ByteBuffer.allocateDirect(bytes);
      bytes = filler.fill(buffer);
    }
    return buffer.slice(0, bytes);
  }

  private void image(ByteBuffer image) throws IOException {
    if (transfer.cancelled().getAsBoolean()) {
      throw Image.bad(Reason.CANCELLED, "cancelled after " + position + " bytes");
    }
    put(ByteBuffer.allocate((int) (Image.aligned(position, PAGE) - position)));
    Image.Head head = Image.head(image);
    ByteBuffer entry = ByteBuffer.allocate(ENTRY_BYTES).order(ByteOrder.LITTLE_ENDIAN);
    entries.add(entry.putLong(position).putLong(head.bytes()).putInt(head.type().code()).putInt(head.headCrc()));
    put(image);
    transfer.listener().moved(position, Math.max(total, position));
  }

  private void put(ByteBuffer bytes) throws IOException {
    position += bytes.remaining();
    while (bytes.hasRemaining()) {
      if (channel.write(bytes) <= 0) {
        throw new IOException("the channel takes no bytes: it must be one that blocks");
      }
    }
  }

  static ByteBuffer trailer(long index, long bytes) {
    ByteBuffer trailer = ByteBuffer.allocate(TRAILER_BYTES).order(ByteOrder.LITTLE_ENDIAN);
    trailer.put(0, END).putLong(8, index).putLong(16, bytes);
    return trailer.putInt(24, Image.crc(trailer));
  }
}
