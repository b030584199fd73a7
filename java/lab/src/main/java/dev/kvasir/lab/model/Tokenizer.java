package dev.kvasir.lab.model;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

/** Bytes to tokens and back. */
public interface Tokenizer {

  /** The tokens of a text. No special token is added or, within the text, recognised. */
  int[] encode(byte[] text);

  /** The bytes that these tokens stand for; special tokens stand for none. */
  byte[] decode(int... tokens);

  /** The tokens that the model expects before every text, such as the beginning-of-sequence token. */
  int[] prefix();

  /** The tokens of a string's UTF-8. */
  default int[] encode(String text) {
    return encode(text.getBytes(StandardCharsets.UTF_8));
  }

  /**
   * The tokenizer of a model: {@code tokenizer.json}, or bytes where there is none and the vocabulary is that small.
   *
   * @throws ModelException if there is neither, or the file describes something else than byte-level BPE
   */
  static Tokenizer load(Path folder, ModelConfig config) throws IOException {
    Path file = folder.resolve("tokenizer.json");
    if (Files.exists(file)) {
      return BpeTokenizer.read(file);
    }
    if (config.vocabulary() < 256 || config.vocabulary() > 512) {
      throw new ModelException(
          folder + " has no tokenizer.json, and a vocabulary of " + config.vocabulary() + " is not one of bytes");
    }
    return new ByteTokenizer(config.bos());
  }
}
