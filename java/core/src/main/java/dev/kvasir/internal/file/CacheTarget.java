package dev.kvasir.internal.file;

import dev.kvasir.error.KvFileException.Reason;
import dev.kvasir.internal.NativeRestoring;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/** Restores what is read, into a cache of the same description. */
public record CacheTarget(
    NativeRestoring restoring, String description, long mostBlockBytes, long mostStateBytes)
    implements SequenceInput.Target {

  private static final int MOST_DIFFERENCES = 4;

  @Override
  public void description(String text) {
    if (!text.equals(description)) {
      throw Image.bad(Reason.MISMATCH, "saved by a cache of another kind: " + difference(text, description));
    }
  }

  @Override
  public void block(Image.Head head, ByteBuffer image) {
    restoring.addBlock(image, null);
  }

  @Override
  public void state(Image.Head head, ByteBuffer image) {
    restoring.setState(image);
  }

  /** The lines that differ, with those that say of which layers they are. */
  static String difference(String theirs, String ours) {
    String[] file = theirs.split("\n");
    String[] cache = ours.split("\n");
    List<String> found = new ArrayList<>();
    String layers = "";
    for (int i = 0; i < Math.max(file.length, cache.length) && found.size() < MOST_DIFFERENCES; i++) {
      String one = i < file.length ? file[i].strip() : "nothing";
      String other = i < cache.length ? cache[i].strip() : "nothing";
      if (!one.equals(other)) {
        found.add(layers + "'" + one + "' in the file, '" + other + "' here");
        if (one.startsWith("layers ") || other.startsWith("layers ")) {
          break; // what follows is of different layers
        }
      } else if (one.startsWith("layers ")) {
        layers = one + ": ";
      }
    }
    return String.join("; ", found);
  }
}
