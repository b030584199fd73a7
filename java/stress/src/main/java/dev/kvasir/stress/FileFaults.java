package dev.kvasir.stress;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.error.KvFileException;
import dev.kvasir.file.FileOptions;
import dev.kvasir.file.KvBlock;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.WritableByteChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;

/**
 * {@code FileFaults N [SEED]}: so many faults in saved sequences. Each must be refused with a typed error, and leave the
 * cache as it was.
 */
public final class FileFaults {

  /** Faults for each writer that is killed: those take a JVM each. */
  private static final int FAULTS_PER_WRITER = 1500;
  private static final int MOST_WRITERS = 40;

  private final Random random;
  private final List<SavedSample> samples;
  private long wrong;
  private long crashes;

  private FileFaults(Random random, List<SavedSample> samples) {
    this.random = random;
    this.samples = samples;
  }

  /**
   * Runs; ends with "N faults, N wrong restores, N crashes" and "N passed, N failed", and 1 where something failed.
   *
   * @param args how many, and a seed to repeat
   */
  public static void main(String[] args) throws Exception {
    if (args.length == 2 && args[0].equals("write")) {
      KilledWriter.write(Path.of(args[1]));
      return;
    }
    long count = args.length > 0 ? Long.parseLong(args[0]) : 20_000;
    long seed = args.length > 1 ? Long.parseLong(args[1]) : System.nanoTime() & 0xFFFFFFFFL;
    System.out.println("seed " + seed);
    List<SavedSample> samples = SavedSample.all();
    FileFaults faults = new FileFaults(new Random(seed), samples);
    int writers = (int) Math.min(MOST_WRITERS, count / FAULTS_PER_WRITER);
    for (long i = 0; i < count - writers; i++) {
      faults.one(samples.get((int) (i % samples.size())));
      if (i % 1000 == 0) {
        faults.healthy();
      }
    }
    Path folder = Files.createTempDirectory("kvasir-faults-");
    KilledWriter killed = new KilledWriter(folder, faults.random);
    for (int i = 0; i < writers; i++) {
      faults.count(killed.round());
    }
    killed.delete();
    faults.healthy();
    samples.forEach(SavedSample::close);
    System.out.println(count + " faults, " + faults.wrong + " wrong restores, " + faults.crashes + " crashes");
    boolean good = faults.wrong == 0 && faults.crashes == 0;
    System.out.println(good ? "1 passed, 0 failed" : "0 passed, 1 failed");
    System.exit(good ? 0 : 1);
  }

  /** What became of one. */
  enum Outcome {
    REFUSED,
    WRONG,
    CRASHED
  }

  private void count(Outcome outcome) {
    wrong += outcome == Outcome.WRONG ? 1 : 0;
    crashes += outcome == Outcome.CRASHED ? 1 : 0;
  }

  private void one(SavedSample sample) {
    int kind = random.nextInt(16);
    String what = "fault " + kind + " of " + sample.cache().method().name();
    try {
      if (kind == 0) {
        count(fullDisk(sample));
      } else if (kind <= 3) {
        count(block(sample));
      } else {
        byte[] bad = spoilt(sample, kind);
        while (Arrays.equals(bad, sample.file())) { // noise may be what was there
          bad = spoilt(sample, kind);
        }
        count(restore(sample, bad, what));
      }
    } catch (IOException e) {
      System.out.println("FAILED  " + what + ": " + e);
      crashes++;
    }
  }

  /** A file with one fault. */
  private byte[] spoilt(SavedSample sample, int kind) {
    byte[] good = sample.file();
    byte[] bad = good.clone();
    int at = random.nextInt(good.length);
    switch (kind) {
      case 4:
        return Arrays.copyOf(good, at);
      case 5: // a sector that was never written
        int sector = at / 512 * 512;
        Arrays.fill(bad, sector, Math.min(bad.length, sector + 512), (byte) 0);
        return bad;
      case 6: // bytes that are missing
        int gone = 1 + random.nextInt(64);
        System.arraycopy(good, Math.min(good.length, at + gone), bad, at, Math.max(0, good.length - at - gone));
        return Arrays.copyOf(bad, Math.max(at, good.length - gone));
      case 7:
        return sample.swapped(random, sample);
      case 8:
        return sample.repeated(random);
      case 9:
        return sample.swapped(random, sample.sibling());
      case 10: // of another kind of cache
        return samples.get((samples.indexOf(sample) + 1 + random.nextInt(samples.size() - 1)) % samples.size()).file();
      case 11: // a run of noise
        for (int i = at; i < Math.min(good.length, at + 1 + random.nextInt(300)); i++) {
          bad[i] = (byte) random.nextInt();
        }
        return bad;
      case 12: // in a head or a table
        at = sample.offset(random) + random.nextInt(512);
        bad[Math.min(at, good.length - 1)] ^= (byte) (1 << random.nextInt(8));
        return bad;
      case 13:
        bad[at] = (byte) random.nextInt();
        return bad;
      default:
        bad[at] ^= (byte) (1 << random.nextInt(8));
        return bad;
    }
  }

  private Outcome restore(SavedSample sample, byte[] bad, String what) {
    try (KvSequence restored = sample.cache().restore(SavedSample.channel(bad), FileOptions.defaults())) {
      System.out.println("FAILED  " + what + " was restored as " + restored);
      return Outcome.WRONG;
    } catch (KvFileException e) {
      return Outcome.REFUSED;
    } catch (IOException | RuntimeException | Error e) {
      System.out.println("FAILED  " + what + ": " + e);
      return Outcome.CRASHED;
    }
  }

  /** A block as it might come from a store. */
  private Outcome block(SavedSample sample) {
    List<KvBlock> blocks = new ArrayList<>(sample.blocks());
    int which = random.nextInt(blocks.size());
    KvBlock good = blocks.get(which);
    byte[] bad = new byte[good.bytes().capacity()];
    good.bytes().get(0, bad);
    switch (random.nextInt(4)) {
      case 0 -> bad = Arrays.copyOf(bad, random.nextInt(bad.length));
      case 1 -> {
        KvBlock other = sample.sibling().blocks().get(which);
        bad = new byte[other.bytes().capacity()];
        other.bytes().get(0, bad);
      }
      default -> bad[random.nextInt(bad.length)] ^= (byte) (1 << random.nextInt(8));
    }
    blocks.set(which, new KvBlock(good.hash(), ByteBuffer.wrap(bad)));
    try (KvSequence attached = sample.cache().attachBlocks(blocks)) {
      System.out.println("FAILED  a spoilt block of " + sample.cache().method().name() + " is part of " + attached);
      return Outcome.WRONG;
    } catch (KvFileException e) {
      return Outcome.REFUSED;
    } catch (RuntimeException | Error e) {
      System.out.println("FAILED  a spoilt block: " + e);
      return Outcome.CRASHED;
    }
  }

  /** A disk that is full after some bytes: the writer says so, and what it left is refused. */
  private Outcome fullDisk(SavedSample sample) throws IOException {
    if (random.nextInt(8) == 0) {
      try (FileChannel full = FileChannel.open(Path.of("/dev/full"), StandardOpenOption.WRITE)) {
        sample.sequence().save(full, sample.options());
        return saved();
      } catch (IOException e) {
        return Outcome.REFUSED;
      }
    }
    FullDisk disk = new FullDisk(random.nextInt(sample.file().length));
    try {
      sample.sequence().save(disk, sample.options());
      return saved();
    } catch (IOException e) {
      return restore(sample, Arrays.copyOf(disk.bytes.array(), disk.bytes.position()), "a full disk");
    }
  }

  private static Outcome saved() {
    System.out.println("FAILED  a sequence was saved to a disk that is full");
    return Outcome.WRONG;
  }

  /** Undamaged ones are restored all the while, and nothing else is left in the caches. */
  private void healthy() throws IOException {
    for (SavedSample sample : samples) {
      KvCache cache = sample.cache();
      Violation.unless(cache.stats().sequences() == 2, "a refused sequence is still there");
      try (KvSequence restored = cache.restore(SavedSample.channel(sample.file()), FileOptions.defaults())) {
        Violation.unless(
            Arrays.equals(SavedSample.attend(restored), sample.outputs()), "a good file gives other attention");
      }
      Violation.unless(cache.stats().bytes() == sample.bytes(), "refused sequences left bytes behind");
    }
  }

  /** Takes so many bytes. */
  private static final class FullDisk implements WritableByteChannel {

    private final ByteBuffer bytes;

    FullDisk(int room) {
      bytes = ByteBuffer.allocate(room);
    }

    @Override
    public int write(ByteBuffer source) throws IOException {
      if (source.hasRemaining() && !bytes.hasRemaining()) {
        throw new IOException("No space left on device");
      }
      int count = Math.min(source.remaining(), bytes.remaining());
      bytes.put(source.slice(source.position(), count));
      source.position(source.position() + count);
      return count;
    }

    @Override
    public boolean isOpen() {
      return true;
    }

    @Override
    public void close() {}
  }
}
