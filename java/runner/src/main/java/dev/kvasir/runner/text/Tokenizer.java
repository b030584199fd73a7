package dev.kvasir.runner.text;

import java.nio.charset.StandardCharsets;
import java.util.OptionalInt;

/** Bytes to tokens and back. */
public interface Tokenizer {

  /** The tokens of a text. No special token is added or, within the text, recognised. */
  int[] encode(byte[] text);

  /** The bytes that these tokens stand for; special tokens stand for none. */
  byte[] decode(int... tokens);

  /** The tokens that the model expects before every text, such as the beginning-of-sequence token. */
  int[] prefix();

  /** The special token of a name, such as {@code </s>}, if there is one. */
  OptionalInt special(String name);

  /** The tokens of a string's UTF-8. */
  default int[] encode(String text) {
    return encode(text.getBytes(StandardCharsets.UTF_8));
  }
}
