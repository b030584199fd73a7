package dev.kvasir.internal.file;

import dev.kvasir.error.KvFileException.Reason;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.ReadableByteChannel;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * Reads a sequence file from the first byte to the last, and no byte more. Nothing is handed on whose head and place have
 * not been checked, and nothing is allocated for a number that has not been.
 */
public final class SequenceInput {

  /** The longest description that there can be, by far. */
  private static final long MOST_TEXT = 1 << 24;
  /** Tokens that are in no block, at most: sinks, a window, a page that gathers, guesses. */
  private static final long MOST_LOOSE_TOKENS = 4096 + 65536 + 128 + 64;

  /** Who wants the images. Buffers are lent for the call. */
  public interface Target {
    /** What the file says of its cache; throws where that is another one. */
    void description(String text);

    void block(Image.Head head, ByteBuffer image);

    void state(Image.Head head, ByteBuffer image);

    default void tokens(int[] ids) {}

    long mostBlockBytes();

    long mostStateBytes();
  }

  private final ReadableByteChannel channel;
  private final Transfer transfer;
  private final Target target;
  private final long total;
  private final List<ByteBuffer> entries = new ArrayList<>();
  private long position;
  private long blocks;
  private ByteBuffer buffer = ByteBuffer.allocateDirect(1 << 16);

  private SequenceInput(ReadableByteChannel channel, long total, Transfer transfer, Target target) {
    this.channel = channel;
    this.total = total;
    this.transfer = transfer;
    this.target = target;
  }

  /** All of it; total: the bytes that there are, or -1. Returns the bytes that were read. Throws KvFileException. */
  public static long read(ReadableByteChannel channel, long total, Transfer transfer, Target target)
      throws IOException {
    return new SequenceInput(channel, total, transfer, target).read();
  }

  private long read() throws IOException {
    Image.Type before = null;
    while (before != Image.Type.INDEX) {
      if (transfer.cancelled().getAsBoolean()) {
        throw Image.bad(Reason.CANCELLED, "cancelled after " + position + " bytes");
      }
      skipZeros(Image.aligned(position, SequenceOutput.PAGE) - position);
      long at = position;
      fill(0, Image.HEAD_BYTES);
      Image.Head head = Image.head(buffer);
      if (!follows(before, head.type())) {
        throw Image.bad(Reason.ORDER, "an image of type " + head.type() + " after " + (before == null ? "nothing" : before));
      }
      if (head.bytes() < Image.HEAD_BYTES || head.bytes() > most(head.type())) {
        throw Image.bad(Reason.INVALID, "an image of type " + head.type() + " and " + head.bytes() + " bytes");
      }
      if (total >= 0 && head.bytes() > total - at) {
        throw Image.bad(Reason.TRUNCATED, total + " bytes, which end in the middle of an image");
      }
      reserve((int) head.bytes());
      fill(Image.HEAD_BYTES, (int) head.bytes());
      take(head, buffer.slice(0, (int) head.bytes()));
      entries.add(
          ByteBuffer.allocate(SequenceOutput.ENTRY_BYTES)
              .order(ByteOrder.LITTLE_ENDIAN)
              .putLong(at)
              .putLong(head.bytes())
              .putInt(head.type().code())
              .putInt(head.headCrc())
              .flip());
      before = head.type();
      transfer.listener().moved(position, total);
      if (before == Image.Type.INDEX) {
        readTrailer(at);
      }
    }
    return position;
  }

  private static boolean follows(Image.Type before, Image.Type type) {
    if (before == null) {
      return type == Image.Type.HEADER;
    }
    return switch (type) {
      case HEADER -> false;
      case BLOCK, TOKENS -> before == Image.Type.HEADER || before == Image.Type.BLOCK;
      case STATE -> before != Image.Type.STATE;
      case INDEX -> before == Image.Type.STATE;
    };
  }

  private long most(Image.Type type) {
    long known =
        switch (type) {
          case HEADER -> MOST_TEXT;
          case BLOCK -> target.mostBlockBytes();
          case STATE -> target.mostStateBytes();
          case TOKENS -> (128 * blocks + MOST_LOOSE_TOKENS) * Integer.BYTES + MOST_TEXT;
          case INDEX -> entries.size() * (long) SequenceOutput.ENTRY_BYTES + 1024;
        };
    return Math.min(known, Integer.MAX_VALUE - 64);
  }

  private void take(Image.Head head, ByteBuffer image) {
    switch (head.type()) {
      case HEADER -> {
        ByteBuffer text = Image.only(Image.verify(head, image), Image.TEXT_PART, image);
        if (!Arrays.equals(sha256(text.duplicate()), head.fingerprint())) {
          throw Image.bad(Reason.INVALID, "the fingerprint is not that of the description");
        }
        target.description(StandardCharsets.UTF_8.decode(text).toString());
      }
      case BLOCK -> {
        target.block(head, image);
        blocks++;
      }
      case TOKENS -> {
        ByteBuffer ids = Image.only(Image.verify(head, image), Image.TOKENS_PART, image);
        int[] tokens = new int[ids.remaining() / Integer.BYTES];
        ids.asIntBuffer().get(tokens);
        target.tokens(tokens);
      }
      case STATE -> target.state(head, image);
      case INDEX -> {
        ByteBuffer index = Image.only(Image.verify(head, image), Image.ENTRIES_PART, image);
        ByteBuffer expected = ByteBuffer.allocate(entries.size() * SequenceOutput.ENTRY_BYTES);
        entries.forEach(entry -> expected.put(entry.duplicate()));
        if (!index.equals(expected.flip())) {
          throw Image.bad(Reason.ORDER, "the index is that of other images");
        }
      }
    }
  }

  private void readTrailer(long index) throws IOException {
    long end = position + SequenceOutput.TRAILER_BYTES;
    fill(0, SequenceOutput.TRAILER_BYTES);
    if (!buffer.slice(0, SequenceOutput.TRAILER_BYTES).equals(SequenceOutput.trailer(index, end))) {
      throw Image.bad(Reason.CHECKSUM, "the end of the file is damaged");
    }
    if (total >= 0 && total != end) {
      throw Image.bad(Reason.INVALID, (total - end) + " bytes after the end");
    }
  }

  private void skipZeros(long count) throws IOException {
    if (count == 0) {
      return;
    }
    fill(0, (int) count);
    if (!Image.zero(buffer, 0, (int) count)) {
      throw Image.bad(Reason.CHECKSUM, "a gap between images is not empty");
    }
  }

  /** Room, with what is there kept. */
  private void reserve(int bytes) {
    if (bytes <= buffer.capacity()) {
      return;
    }
    ByteBuffer larger = ByteBuffer.allocateDirect(bytes);
    larger.put(0, buffer, 0, Image.HEAD_BYTES);
    buffer = larger;
  }

  /** Bytes from .. to - 1 of the buffer. */
  private void fill(int from, int to) throws IOException {
    buffer.limit(to).position(from);
    while (buffer.hasRemaining()) {
      int count = channel.read(buffer);
      if (count < 0) {
        throw Image.bad(Reason.TRUNCATED, "the bytes end after " + (position + buffer.position() - from));
      }
      if (count == 0) {
        throw new IOException("the channel gives no bytes: it must be one that blocks");
      }
    }
    position += to - from;
    buffer.clear();
  }

  static byte[] sha256(ByteBuffer bytes) {
    try {
      MessageDigest digest = MessageDigest.getInstance("SHA-256");
      digest.update(bytes);
      return digest.digest();
    } catch (NoSuchAlgorithmException e) {
      throw new AssertionError("every Java platform has SHA-256", e);
    }
  }
}
