package dev.kvasir.runner.text;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharsetDecoder;
import java.nio.charset.CoderResult;
import java.nio.charset.StandardCharsets;
import java.util.function.Consumer;

/** Bytes that are mostly UTF-8. */
final class Utf8 {

  private Utf8() {}

  /** Hands over valid texts and, between them, bytes that are none, as where a text was cut within a character. */
  static void read(byte[] bytes, Consumer<String> text, Consumer<byte[]> broken) {
    CharsetDecoder decoder = StandardCharsets.UTF_8.newDecoder();
    ByteBuffer in = ByteBuffer.wrap(bytes);
    CharBuffer out = CharBuffer.allocate(bytes.length); // for all parts: broken texts have as many as bytes
    while (in.hasRemaining()) {
      CoderResult result = decoder.reset().decode(in, out.clear(), true);
      String valid = out.flip().toString();
      if (!valid.isEmpty()) {
        text.accept(valid);
      }
      if (result.isError()) {
        byte[] rest = new byte[result.length()];
        in.get(rest);
        broken.accept(rest);
      }
    }
  }
}
