package dev.kvasir.stress;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.file.FileOptions;
import dev.kvasir.file.KvBlock;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.Channels;
import java.nio.channels.ReadableByteChannel;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;

/** A small sequence, saved, and another one of the same cache. */
final class SavedSample implements AutoCloseable {

  private static final int TOKENS = 430;
  private static final KvGeometry GEOMETRY =
      KvGeometry.builder().layers(2).queryHeads(2).kvHeads(1).headDim(32).build();

  private final KvCache cache;
  private final KvSequence sequence;
  private final byte[] file;
  private final List<KvBlock> blocks;
  private final float[] outputs;
  private final FileOptions options;
  /** Offset and bytes of each image, as the index of the file has them; the header is the first. */
  private final List<long[]> images = new ArrayList<>();
  private final SavedSample sibling;
  private final long bytes;

  private SavedSample(KvCache cache, long seed, SavedSample sibling) throws IOException {
    this.cache = cache;
    this.sequence = sequence(cache, seed);
    this.outputs = attend(sequence);
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    int[] ids = IntStream.range((int) seed, (int) seed + TOKENS).toArray();
    this.options = FileOptions.defaults().tokens(ids);
    sequence.save(Channels.newChannel(out), options);
    this.file = out.toByteArray();
    this.blocks = sequence.exportBlocks(ids, new byte[] {9}, 0, 100);
    this.sibling = sibling == null ? this : sibling;
    this.bytes = cache.stats().bytes();
    ByteBuffer all = ByteBuffer.wrap(file).order(ByteOrder.LITTLE_ENDIAN);
    int index = (int) all.getLong(file.length - 64 + 8);
    int entries = (int) all.getLong(index + 256 + 24) / 24;
    for (int i = 0; i < entries; i++) {
      int at = index + 320 + 24 * i;
      images.add(new long[] {all.getLong(at), all.getLong(at + 8), all.getInt(at + 16)});
    }
  }

  /** One for each method. */
  static List<SavedSample> all() throws IOException {
    List<SavedSample> samples = new ArrayList<>();
    for (KvMethod method : Recipes.all(GEOMETRY, new Random(1))) {
      KvCache cache = KvCache.builder(GEOMETRY).method(method).threads(1).build();
      samples.add(new SavedSample(cache, 1000, new SavedSample(cache, 2000, null)));
    }
    return samples;
  }

  static KvSequence sequence(KvCache cache, long seed) {
    KvSequence sequence = cache.newSequence();
    Random random = new Random(seed);
    for (int part = 0; part < 2; part++) {
      for (int layer = 0; layer < 2; layer++) {
        float[] rows = Recipes.gaussian(random, TOKENS / 2 * 32, 1);
        sequence.append(layer, rows, Recipes.gaussian(random, TOKENS / 2 * 32, 1), TOKENS / 2);
      }
    }
    return sequence;
  }

  static KvGeometry geometry() {
    return GEOMETRY;
  }

  /** Of a copy: what a sequence is asked, it may remember. */
  static float[] attend(KvSequence sequence) {
    float[] all = new float[2 * 64];
    try (KvSequence fork = sequence.fork()) {
      for (int layer = 0; layer < 2; layer++) {
        float[] output = new float[64];
        fork.attend(layer, Recipes.gaussian(new Random(layer), 64, 1), output);
        System.arraycopy(output, 0, all, 64 * layer, 64);
      }
    }
    return all;
  }

  static ReadableByteChannel channel(byte[] bytes) {
    return Channels.newChannel(new ByteArrayInputStream(bytes));
  }

  KvCache cache() {
    return cache;
  }

  KvSequence sequence() {
    return sequence;
  }

  byte[] file() {
    return file;
  }

  /** How it was saved. */
  FileOptions options() {
    return options;
  }

  List<KvBlock> blocks() {
    return blocks;
  }

  float[] outputs() {
    return outputs;
  }

  SavedSample sibling() {
    return sibling;
  }

  long bytes() {
    return bytes;
  }

  /** Where some image begins. */
  int offset(Random random) {
    return (int) images.get(random.nextInt(images.size()))[0];
  }

  /** An image in the place of another one, of a sequence of the same cache; both ways within one. */
  byte[] swapped(Random random, SavedSample other) {
    long[] one = images.get(1 + random.nextInt(images.size() - 1));
    long[] two = other.images.get(1 + random.nextInt(images.size() - 1));
    byte[] bad = file.clone();
    System.arraycopy(other.file, (int) two[0], bad, (int) one[0], (int) Math.min(one[1], two[1]));
    if (other == this) {
      System.arraycopy(file, (int) one[0], bad, (int) two[0], (int) Math.min(one[1], two[1]));
    }
    return bad;
  }

  /** A block that is there twice, once too often. */
  byte[] repeated(Random random) {
    long[] one = images.get(1 + random.nextInt(3));
    int from = (int) one[0];
    int length = (int) ((one[1] + 4095) / 4096 * 4096);
    byte[] bad = new byte[file.length + length];
    System.arraycopy(file, 0, bad, 0, from + length);
    System.arraycopy(file, from, bad, from + length, file.length - from);
    return bad;
  }

  @Override
  public void close() {
    cache.close();
  }
}
