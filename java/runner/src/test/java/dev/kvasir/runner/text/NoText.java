package dev.kvasir.runner.text;

import java.util.OptionalInt;

/** Tokens without texts, for models that nobody talks to. */
public class NoText implements Tokenizer {

  @Override
  public int[] encode(byte[] text) {
    throw new UnsupportedOperationException("there are no texts");
  }

  @Override
  public byte[] decode(int... tokens) {
    return new byte[0];
  }

  @Override
  public int[] prefix() {
    return new int[0];
  }

  @Override
  public OptionalInt special(String name) {
    return OptionalInt.empty();
  }
}
