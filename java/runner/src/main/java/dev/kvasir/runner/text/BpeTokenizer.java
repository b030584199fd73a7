package dev.kvasir.runner.text;

import dev.kvasir.internal.json.Json;
import dev.kvasir.runner.file.ModelException;
import java.nio.charset.StandardCharsets;
import java.text.Normalizer;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.IntStream;

/**
 * Byte-level BPE: a text is cut into words by regular expressions, each word becomes its bytes, and neighbouring tokens
 * are merged, the earliest rule of the list first.
 */
final class BpeTokenizer extends PieceTokenizer {

  /** How GPT-2 cuts a text. */
  static final String GPT2_WORDS =
      "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

  /** The character that stands for each byte in the files' strings. */
  private static final char[] BYTE_CHARS = byteChars();

  private static final Map<Character, Integer> CHAR_BYTES = new HashMap<>();

  static {
    for (int b = 0; b < 256; b++) {
      CHAR_BYTES.put(BYTE_CHARS[b], b);
    }
  }

  /**
   * What a file says of such a tokenizer.
   *
   * @param vocabulary ids by the characters that stand for bytes
   * @param merges pairs of such strings, the earliest first
   * @param words how texts are cut, each expression within what the one before leaves
   * @param composed whether texts are brought to NFC first
   * @param wholeWords whether a word that is a token is that token, whatever the rules say
   * @param specials tokens beside those
   * @param prefix tokens before every text
   */
  record Description(
      Map<String, Integer> vocabulary,
      List<String[]> merges,
      List<Pattern> words,
      boolean composed,
      boolean wholeWords,
      SpecialTokens specials,
      int[] prefix) {}

  private final Description file;
  private final int[] byteTokens = new int[256];

  BpeTokenizer(Description file, String place) throws ModelException {
    super(file.vocabulary(), file.specials(), file.prefix());
    this.file = file;
    file.vocabulary().forEach((token, id) -> write(id, toBytes(token)));
    for (int b = 0; b < 256; b++) {
      String name = String.valueOf(BYTE_CHARS[b]);
      byteTokens[b] = inTexts(b) ? id(name, place) : file.vocabulary().getOrDefault(name, -1);
    }
    finish(file.merges(), place);
  }

  /** Whether a byte is part of any character's UTF-8: vocabularies may lack the others, as DeepSeek Coder's does. */
  private static boolean inTexts(int b) {
    return b < 0xC0 || b > 0xC1 && b < 0xF5;
  }

  @Override
  public int[] encode(byte[] text) {
    IntStream.Builder tokens = IntStream.builder();
    if (file.words().isEmpty() && !file.composed() && !file.specials().hasAdded()) {
      encodeWord(text, tokens);
    } else {
      Utf8.read(
          text,
          valid -> file.specials().cut(valid, part -> encodeText(part, tokens), added -> tokens.add(added.id())),
          broken -> encodeWord(broken, tokens));
    }
    return tokens.build().toArray();
  }

  private void encodeText(String text, IntStream.Builder tokens) {
    encodeWords(file.composed() ? Normalizer.normalize(text, Normalizer.Form.NFC) : text, 0, tokens);
  }

  /** Cuts by the expressions from {@code level} on: what one matches, and what lies between matches. */
  private void encodeWords(String text, int level, IntStream.Builder tokens) {
    if (text.isEmpty()) {
      return;
    }
    if (level == file.words().size()) {
      encodeWord(text.getBytes(StandardCharsets.UTF_8), tokens);
      return;
    }
    Matcher matcher = file.words().get(level).matcher(text);
    int end = 0;
    while (find(matcher)) {
      encodeWords(text.substring(end, matcher.start()), level + 1, tokens);
      encodeWords(matcher.group(), level + 1, tokens);
      end = matcher.end();
    }
    encodeWords(text.substring(end), level + 1, tokens);
  }

  private static boolean find(Matcher matcher) {
    try {
      return matcher.find();
    } catch (StackOverflowError e) {
      String expression = Json.abbreviate(matcher.pattern().pattern());
      throw new IllegalArgumentException("the tokenizer's \"" + expression + "\" goes too deep for this text", e);
    }
  }

  private void encodeWord(byte[] word, IntStream.Builder tokens) {
    if (file.wholeWords()) {
      Integer whole = file.vocabulary().get(toChars(word));
      if (whole != null) {
        tokens.add(whole);
        return;
      }
    }
    int[] token = new int[word.length];
    for (int i = 0; i < token.length; i++) {
      token[i] = byteTokens[word[i] & 0xFF];
      if (token[i] < 0) {
        throw new IllegalArgumentException(
            String.format("the vocabulary has no token for the byte 0x%02X, which is in no text", word[i] & 0xFF));
      }
    }
    merger.merge(token, tokens);
  }

  static Pattern words(String expression) {
    return Pattern.compile(expression, Pattern.UNICODE_CHARACTER_CLASS);
  }

  @Override
  String lacking() {
    return "so it is not byte-level BPE";
  }

  private static String toChars(byte[] word) {
    StringBuilder out = new StringBuilder();
    for (byte b : word) {
      out.append(BYTE_CHARS[b & 0xFF]);
    }
    return out.toString();
  }

  private static byte[] toBytes(String token) {
    byte[] result = new byte[token.length()];
    for (int i = 0; i < result.length; i++) {
      Integer b = CHAR_BYTES.get(token.charAt(i));
      if (b == null) {
        // A special token that the vocabulary lists among the others.
        return token.getBytes(StandardCharsets.UTF_8);
      }
      result[i] = b.byteValue();
    }
    return result;
  }

  /** Printable Latin-1 characters stand for themselves, all other bytes for the characters from 256 on. */
  private static char[] byteChars() {
    char[] chars = new char[256];
    int next = 256;
    for (int b = 0; b < 256; b++) {
      boolean printable = b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE;
      chars[b] = printable ? (char) b : (char) next++;
    }
    return chars;
  }
}
