package dev.kvasir.runner.text;

import java.io.ByteArrayOutputStream;
import java.util.OptionalInt;

/** Token {@code b} is byte {@code b}; those above 255 are special. */
final class ByteTokenizer implements Tokenizer {

  private final OptionalInt bos;

  ByteTokenizer(OptionalInt bos) {
    this.bos = bos;
  }

  @Override
  public int[] encode(byte[] text) {
    int[] tokens = new int[text.length];
    for (int i = 0; i < tokens.length; i++) {
      tokens[i] = text[i] & 0xFF;
    }
    return tokens;
  }

  @Override
  public byte[] decode(int... tokens) {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    for (int token : tokens) {
      if (token < 256) {
        out.write(token);
      }
    }
    return out.toByteArray();
  }

  @Override
  public int[] prefix() {
    return bos.isPresent() ? new int[] {bos.getAsInt()} : new int[0];
  }

  @Override
  public OptionalInt special(String name) {
    return OptionalInt.empty();
  }
}
