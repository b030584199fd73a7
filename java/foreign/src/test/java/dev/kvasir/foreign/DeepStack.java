package dev.kvasir.foreign;

import java.lang.foreign.Arena;

/** Holds a segment at every depth of the stack until it ends, again and again. For {@link SegmentsTest}. */
public final class DeepStack {

  private static final int DESCENTS = 200;

  private DeepStack() {}

  public static void main(String[] arguments) {
    HeldSegment segment = new HeldSegment(Arena.global().allocate(64));
    int ends = 0;
    for (int i = 0; i < DESCENTS; i++) {
      try {
        begin(i, segment);
      } catch (StackOverflowError e) {
        ends++;
      }
    }
    System.out.println(ends + " of " + DESCENTS);
  }

  /** From another depth each time, so that the stack ends elsewhere. */
  private static void begin(int depth, HeldSegment segment) {
    if (depth == 0) {
      descend(segment);
    } else {
      begin(depth - 1, segment);
    }
  }

  private static void descend(HeldSegment segment) {
    segment.hold(() -> {});
    descend(segment);
  }
}
