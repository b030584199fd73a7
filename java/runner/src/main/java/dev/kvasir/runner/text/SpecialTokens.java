package dev.kvasir.runner.text;

import java.nio.charset.StandardCharsets;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Map;
import java.util.OptionalInt;
import java.util.TreeMap;
import java.util.function.Consumer;
import java.util.function.IntConsumer;

/**
 * Tokens beside a vocabulary's own: special ones, which steer the model and are no text, and added ones, which stand for
 * a text that is never cut.
 */
final class SpecialTokens {

  private final Map<String, Integer> special = new HashMap<>();
  /** By text, the longest first, so that it is found before its beginning. */
  private final Map<String, Integer> added =
      new TreeMap<>(Comparator.comparingInt(String::length).reversed().thenComparing(Comparator.naturalOrder()));
  private final Map<Integer, byte[]> bytes = new HashMap<>();

  void special(String name, int id) {
    special.put(name, id);
    bytes.put(id, new byte[0]);
  }

  void added(String text, int id) {
    bytes.put(id, text.getBytes(StandardCharsets.UTF_8));
    if (!text.isEmpty()) {
      added.put(text, id);
    }
  }

  OptionalInt find(String name) {
    Integer id = special.getOrDefault(name, added.get(name));
    return id == null ? OptionalInt.empty() : OptionalInt.of(id);
  }

  /** The bytes of these tokens by id; special ones have none. */
  Map<Integer, byte[]> bytes() {
    return bytes;
  }

  boolean hasAdded() {
    return !added.isEmpty();
  }

  /** Cuts a text at added tokens: hands over what lies between them, and their ids. */
  void cut(String text, Consumer<String> between, IntConsumer token) {
    int begin = 0;
    for (int at = 0; at < text.length(); ) {
      String found = null;
      for (String candidate : added.keySet()) {
        if (text.startsWith(candidate, at)) {
          found = candidate;
          break;
        }
      }
      if (found == null) {
        at++;
        continue;
      }
      if (at > begin) {
        between.accept(text.substring(begin, at));
      }
      token.accept(added.get(found));
      at += found.length();
      begin = at;
    }
    if (begin < text.length()) {
      between.accept(text.substring(begin));
    }
  }
}
