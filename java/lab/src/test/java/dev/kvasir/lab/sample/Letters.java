package dev.kvasir.lab.sample;

import java.util.Random;

/** Texts that mean nothing. */
public final class Letters {

  private Letters() {}

  /** Small letters at random. */
  public static String random(long seed, int count) {
    return new Random(seed).ints(count, 'a', 'z' + 1).collect(
        StringBuilder::new, StringBuilder::appendCodePoint, StringBuilder::append).toString();
  }
}
