package dev.kvasir.runner;

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;

/** Bytes that come in pieces, as text: a character is handed out once it is whole. */
final class TextStream {

  private final ByteArrayOutputStream pending = new ByteArrayOutputStream();

  /** Whole characters so far; bytes that can never become one are replaced. */
  String add(byte[] bytes) {
    pending.writeBytes(bytes);
    byte[] all = pending.toByteArray();
    int whole = all.length - incomplete(all);
    pending.reset();
    pending.write(all, whole, all.length - whole);
    return new String(all, 0, whole, StandardCharsets.UTF_8);
  }

  /** Whatever is left. */
  String rest() {
    String rest = pending.toString(StandardCharsets.UTF_8);
    pending.reset();
    return rest;
  }

  /** Bytes at the end that begin a character and do not complete it. */
  private static int incomplete(byte[] bytes) {
    for (int back = 1; back <= Math.min(3, bytes.length); back++) {
      int lead = bytes[bytes.length - back] & 0xFF;
      if (lead >= 0xC0) {
        int needed = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
        return needed > back ? back : 0;
      }
      if (lead < 0x80) {
        return 0;
      }
    }
    return 0;
  }
}
