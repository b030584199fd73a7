package dev.kvasir.internal.file;

import dev.kvasir.error.KvFileException.Reason;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.ReadableByteChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;

/** Reads a file for what it says of itself, and checks all of it. */
public final class FileCheck implements SequenceInput.Target {

  private static final int LAYERS_PART = 5;
  private static final int LAYER_BYTES = 48;

  private final long size;
  private final List<Long> lengths = new ArrayList<>();
  private String description = "";
  private byte[] fingerprint = new byte[0];
  private long blocks;
  private int[] tokens = {};

  /** Of a file of so many bytes. */
  public FileCheck(long size) {
    this.size = size;
  }

  public void read(ReadableByteChannel channel, Transfer transfer) throws IOException {
    SequenceInput.read(channel, size, transfer, this);
  }

  public long size() {
    return size;
  }

  public long blocks() {
    return blocks;
  }

  /** Tokens of each layer. */
  public List<Long> lengths() {
    return List.copyOf(lengths);
  }

  public String description() {
    return description;
  }

  /** In hexadecimal. */
  public String fingerprint() {
    return HexFormat.of().formatHex(fingerprint);
  }

  public int[] tokens() {
    return tokens.clone();
  }

  @Override
  public void description(String text) {
    description = text;
  }

  @Override
  public void block(Image.Head head, ByteBuffer image) {
    Image.verify(head, image);
    same(head);
    if (head.number() != blocks) {
      throw Image.bad(Reason.ORDER, "block " + head.number() + " in place of block " + blocks);
    }
    blocks++;
  }

  @Override
  public void state(Image.Head head, ByteBuffer image) {
    List<Image.Part> parts = Image.verify(head, image);
    same(head);
    if (head.number() != blocks) {
      throw Image.bad(Reason.INCOMPLETE, blocks + " blocks of " + head.number());
    }
    Image.Part numbers = parts.isEmpty() ? null : parts.get(0);
    if (numbers == null || numbers.kind() != LAYERS_PART || numbers.bytes() % LAYER_BYTES != 0) {
      throw Image.bad(Reason.INVALID, "the state does not begin with its layers");
    }
    ByteBuffer content = image.duplicate().order(ByteOrder.LITTLE_ENDIAN);
    for (long at = 0; at < numbers.bytes(); at += LAYER_BYTES) {
      lengths.add(content.getLong((int) (numbers.offset() + at)));
    }
  }

  @Override
  public void tokens(int[] ids) {
    tokens = ids;
  }

  /** There is no cache to say what can be: the file's own size bounds everything. */
  @Override
  public long mostBlockBytes() {
    return size;
  }

  @Override
  public long mostStateBytes() {
    return size;
  }

  /** All images of a file have one fingerprint. */
  private void same(Image.Head head) {
    if (fingerprint.length == 0) {
      fingerprint = head.fingerprint();
    }
    if (!Arrays.equals(fingerprint, head.fingerprint())
        || !Arrays.equals(fingerprint, SequenceInput.sha256(StandardCharsets.UTF_8.encode(description)))) {
      throw Image.bad(Reason.MISMATCH, "images of several fingerprints");
    }
  }
}
