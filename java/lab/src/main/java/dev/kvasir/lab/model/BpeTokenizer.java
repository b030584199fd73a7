package dev.kvasir.lab.model;

import dev.kvasir.lab.Json;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharsetDecoder;
import java.nio.charset.CoderResult;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.text.Normalizer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;
import java.util.stream.IntStream;

/**
 * Byte-level BPE from a {@code tokenizer.json}: a text is cut into words by regular expressions, each word becomes its
 * bytes, and neighbouring tokens are merged, the earliest rule of the list first.
 */
final class BpeTokenizer implements Tokenizer {

  /** How GPT-2 cuts a text, which "use_regex" of the ByteLevel step means. */
  private static final String GPT2_WORDS =
      "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

  /** The character that stands for each byte in the file's strings. */
  private static final char[] BYTE_CHARS = byteChars();

  private static final Map<Character, Integer> CHAR_BYTES = new HashMap<>();

  static {
    for (int b = 0; b < 256; b++) {
      CHAR_BYTES.put(BYTE_CHARS[b], b);
    }
  }

  /** What a pair of tokens becomes, and how early. */
  private record Merge(int rank, int result) {}

  private final Map<String, Integer> vocabulary;
  private final Map<Integer, byte[]> bytes = new HashMap<>();
  private final Map<Long, Merge> merges = new HashMap<>();
  private final int[] byteTokens = new int[256];
  private final List<Pattern> words = new ArrayList<>();
  private final boolean wholeWords;
  private boolean composed;
  private int[] prefix = new int[0];

  private BpeTokenizer(Json json, Path file) throws ModelException {
    Json model = json.get("model");
    String type = model.find("type").map(Json::text).orElse("BPE");
    if (!type.equals("BPE") || model.find("byte_fallback").map(Json::flag).orElse(false)) {
      throw new ModelException(file + ": a " + type + " model; byte-level BPE can be read");
    }
    vocabulary = new HashMap<>();
    model.get("vocab").map().forEach((token, id) -> vocabulary.put(token, id.integer()));
    for (Map.Entry<String, Integer> entry : vocabulary.entrySet()) {
      bytes.put(entry.getValue(), toBytes(entry.getKey()));
    }
    for (int b = 0; b < 256; b++) {
      byteTokens[b] = id(String.valueOf(BYTE_CHARS[b]), file);
    }
    for (Json merge : model.get("merges").list()) {
      // Older files join the pair by a space.
      List<String> pair =
          merge.isText()
              ? Arrays.asList(merge.text().split(" ", 2))
              : merge.list().stream().map(Json::text).toList();
      if (pair.size() != 2) {
        throw new ModelException(file + ": the merge " + merge + " is no pair");
      }
      Merge result = new Merge(merges.size(), id(pair.get(0) + pair.get(1), file));
      merges.putIfAbsent(key(id(pair.get(0), file), id(pair.get(1), file)), result);
    }
    wholeWords = model.find("ignore_merges").map(Json::flag).orElse(false);
    // Added tokens with bytes of their own are decoded as such; special ones are not text.
    for (Json added : json.find("added_tokens").map(Json::list).orElse(List.of())) {
      boolean special = added.find("special").map(Json::flag).orElse(false);
      byte[] content = added.get("content").text().getBytes(StandardCharsets.UTF_8);
      bytes.put(added.get("id").integer(), special ? new byte[0] : content);
    }
    json.find("normalizer").ifPresent(step -> composed = isComposing(step));
    for (Json step : steps(json, "pre_tokenizer", "pretokenizers")) {
      addWords(step, file);
    }
    for (Json step : steps(json, "post_processor", "processors")) {
      step.find("single").ifPresent(single -> prefix = prefixOf(single, step));
    }
  }

  static BpeTokenizer read(Path file) throws IOException {
    try {
      return new BpeTokenizer(Json.read(file), file);
    } catch (Json.JsonException | PatternSyntaxException e) {
      throw new ModelException(file + ": " + e.getMessage(), e);
    }
  }

  @Override
  public int[] encode(byte[] text) {
    IntStream.Builder tokens = IntStream.builder();
    if (words.isEmpty() && !composed) {
      encodeWord(text, tokens);
    } else {
      encodeText(text, tokens);
    }
    return tokens.build().toArray();
  }

  @Override
  public byte[] decode(int... tokens) {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    for (int token : tokens) {
      out.writeBytes(bytes.getOrDefault(token, new byte[0]));
    }
    return out.toByteArray();
  }

  @Override
  public int[] prefix() {
    return prefix.clone();
  }

  /** Cuts UTF-8 into words. Bytes that are none, as where a text was cut within a character, are words of their own. */
  private void encodeText(byte[] text, IntStream.Builder tokens) {
    CharsetDecoder decoder = StandardCharsets.UTF_8.newDecoder();
    ByteBuffer in = ByteBuffer.wrap(text);
    while (in.hasRemaining()) {
      CharBuffer out = CharBuffer.allocate(in.remaining());
      CoderResult result = decoder.reset().decode(in, out, true);
      String valid = out.flip().toString();
      encodeWords(composed ? Normalizer.normalize(valid, Normalizer.Form.NFC) : valid, 0, tokens);
      if (result.isError()) {
        byte[] broken = new byte[result.length()];
        in.get(broken);
        encodeWord(broken, tokens);
      }
    }
  }

  /** Cuts by the expressions from {@code level} on: what one matches, and what lies between matches. */
  private void encodeWords(String text, int level, IntStream.Builder tokens) {
    if (text.isEmpty()) {
      return;
    }
    if (level == words.size()) {
      encodeWord(text.getBytes(StandardCharsets.UTF_8), tokens);
      return;
    }
    Matcher matcher = words.get(level).matcher(text);
    int end = 0;
    while (matcher.find()) {
      encodeWords(text.substring(end, matcher.start()), level + 1, tokens);
      encodeWords(matcher.group(), level + 1, tokens);
      end = matcher.end();
    }
    encodeWords(text.substring(end), level + 1, tokens);
  }

  /** A possible merge of the tokens at two places of a word. */
  private record Candidate(int rank, int left, int right, int leftToken, int rightToken, int result) {}

  private void encodeWord(byte[] word, IntStream.Builder tokens) {
    if (wholeWords) {
      Integer whole = vocabulary.get(toChars(word));
      if (whole != null) {
        tokens.add(whole);
        return;
      }
    }
    // A linked list over places; a merge keeps the left place and removes the right one.
    int size = word.length;
    int[] token = new int[size];
    int[] next = new int[size];
    int[] previous = new int[size];
    for (int i = 0; i < size; i++) {
      token[i] = byteTokens[word[i] & 0xFF];
      next[i] = i + 1;
      previous[i] = i - 1;
    }
    PriorityQueue<Candidate> queue =
        new PriorityQueue<>(Comparator.comparingInt(Candidate::rank).thenComparingInt(Candidate::left));
    for (int i = 0; i + 1 < size; i++) {
      propose(queue, token, i, i + 1);
    }
    while (!queue.isEmpty()) {
      Candidate best = queue.remove();
      // Out of date where one of its tokens has been merged meanwhile.
      if (token[best.left()] != best.leftToken()
          || token[best.right()] != best.rightToken()
          || next[best.left()] != best.right()) {
        continue;
      }
      token[best.left()] = best.result();
      token[best.right()] = -1;
      next[best.left()] = next[best.right()];
      if (next[best.left()] < size) {
        previous[next[best.left()]] = best.left();
        propose(queue, token, best.left(), next[best.left()]);
      }
      if (previous[best.left()] >= 0) {
        propose(queue, token, previous[best.left()], best.left());
      }
    }
    for (int i = 0; i < size; i = next[i]) {
      tokens.add(token[i]);
    }
  }

  private void propose(PriorityQueue<Candidate> queue, int[] token, int left, int right) {
    Merge merge = merges.get(key(token[left], token[right]));
    if (merge != null) {
      queue.add(new Candidate(merge.rank(), left, right, token[left], token[right], merge.result()));
    }
  }

  private void addWords(Json step, Path file) throws ModelException {
    String type = step.get("type").text();
    if (type.equals("ByteLevel")) {
      if (step.find("add_prefix_space").map(Json::flag).orElse(false)) {
        throw new ModelException(file + ": add_prefix_space is true, which is not supported");
      }
      if (step.find("use_regex").map(Json::flag).orElse(true)) {
        words.add(compile(GPT2_WORDS));
      }
    } else if (type.equals("Split") && step.get("pattern").find("Regex").isPresent()) {
      String behaviour = step.get("behavior").text();
      if (!behaviour.equals("Isolated") && !behaviour.equals("Removed")
          || behaviour.equals("Removed") != step.find("invert").map(Json::flag).orElse(false)) {
        throw new ModelException(file + ": a Split step that neither isolates nor keeps what it matches");
      }
      words.add(compile(step.get("pattern").get("Regex").text()));
    } else {
      throw new ModelException(file + ": a pre-tokenizer step " + type + "; ByteLevel and Split can be read");
    }
  }

  private static Pattern compile(String expression) {
    return Pattern.compile(expression, Pattern.UNICODE_CHARACTER_CLASS);
  }

  private static boolean isComposing(Json step) {
    String type = step.get("type").text();
    if (!type.equals("NFC")) {
      throw new Json.JsonException("the normalizer is " + type + "; none and NFC can be read");
    }
    return true;
  }

  /** A step, or the steps of a sequence of them. */
  private static List<Json> steps(Json json, String name, String members) {
    return json.find(name)
        .map(step -> step.get("type").text().equals("Sequence") ? step.get(members).list() : List.of(step))
        .orElse(List.of());
  }

  /** The special tokens that a template puts before the text. */
  private static int[] prefixOf(Json single, Json step) {
    List<Integer> ids = new ArrayList<>();
    for (Json piece : single.list()) {
      if (piece.find("Sequence").isPresent()) {
        break;
      }
      String name = piece.get("SpecialToken").get("id").text();
      for (int id : step.get("special_tokens").get(name).get("ids").integers()) {
        ids.add(id);
      }
    }
    return ids.stream().mapToInt(Integer::intValue).toArray();
  }

  private int id(String token, Path file) throws ModelException {
    Integer id = vocabulary.get(token);
    if (id == null) {
      throw new ModelException(file + ": the vocabulary lacks \"" + token + "\", so it is not byte-level BPE");
    }
    return id;
  }

  private static long key(int left, int right) {
    return (long) left << 32 | right;
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
