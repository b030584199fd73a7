package dev.kvasir.runner.text;

import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Map;
import java.util.OptionalInt;
import java.util.SortedSet;
import java.util.TreeSet;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * Tokens beside a vocabulary's own: special ones, which steer the model and are no text, and added ones, which stand for
 * a text that is never cut.
 */
final class SpecialTokens {

  /**
   * A token that stands for a text that is never cut.
   *
   * @param id its number
   * @param apart whether it is cut off before anything is done to a text, so that what follows begins as a text does
   * @param spaceBefore whether spaces before it are part of it
   * @param spaceAfter whether those after it are
   */
  record Added(int id, boolean apart, boolean spaceBefore, boolean spaceAfter) {}

  private final Map<String, Integer> special = new HashMap<>();
  private final Map<String, Added> added = new HashMap<>();
  /** How long added texts are, by how they begin: the longest first, so that it is found before its beginning. */
  private final Map<Character, SortedSet<Integer>> lengths = new HashMap<>();
  private final Map<Integer, byte[]> bytes = new HashMap<>();

  void special(String name, int id) {
    special.put(name, id);
    bytes.put(id, new byte[0]);
  }

  void added(String text, Added token) {
    bytes.put(token.id(), text.getBytes(StandardCharsets.UTF_8));
    if (!text.isEmpty()) {
      added.put(text, token);
      lengths
          .computeIfAbsent(text.charAt(0), first -> new TreeSet<>(Comparator.reverseOrder()))
          .add(text.length());
    }
  }

  OptionalInt find(String name) {
    Integer id = special.get(name);
    Added token = added.get(name);
    return id != null ? OptionalInt.of(id) : token != null ? OptionalInt.of(token.id()) : OptionalInt.empty();
  }

  /** The bytes of these tokens by id; special ones have none. */
  Map<Integer, byte[]> bytes() {
    return bytes;
  }

  boolean hasAdded() {
    return !added.isEmpty();
  }

  /** The longest text of an added token that stands there. */
  private @Nullable String addedAt(String text, int at) {
    for (int length : lengths.getOrDefault(text.charAt(at), Collections.emptySortedSet())) {
      String found = length <= text.length() - at ? text.substring(at, at + length) : "";
      if (added.containsKey(found)) {
        return found;
      }
    }
    return null;
  }

  /** Cuts a text at added tokens: hands over what lies between them, and the tokens. */
  void cut(String text, Consumer<String> between, Consumer<Added> token) {
    int begin = 0;
    for (int at = 0; at < text.length(); ) {
      String found = addedAt(text, at);
      if (found == null) {
        at++;
        continue;
      }
      Added cut = added.get(found);
      int end = at;
      while (cut.spaceBefore() && end > begin && Character.isWhitespace(text.charAt(end - 1))) {
        end--;
      }
      if (end > begin) {
        between.accept(text.substring(begin, end));
      }
      token.accept(cut);
      at += found.length();
      while (cut.spaceAfter() && at < text.length() && Character.isWhitespace(text.charAt(at))) {
        at++;
      }
      begin = at;
    }
    if (begin < text.length()) {
      between.accept(text.substring(begin));
    }
  }
}
