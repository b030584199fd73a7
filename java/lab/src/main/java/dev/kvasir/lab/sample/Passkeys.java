package dev.kvasir.lab.sample;

import dev.kvasir.runner.file.ModelException;
import dev.kvasir.runner.text.Tokenizer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Random;
import java.util.stream.IntStream;

/**
 * Pass keys that are hidden in held-out text and asked for at its end, at depths from its beginning to its end. Questions
 * about one text follow each other and share it, so that it is read once.
 *
 * <p>A key must be found with a 16-bit cache for it to say anything of other caches, and models of two bits a weight find few
 * of five in 2048 tokens. So texts are short, and each key is said twice, in a paragraph of its own.
 */
final class Passkeys {

  /** What instances are called in tables. */
  static final String NAME = "passkey";

  /** Keys in one text. */
  private static final int KEYS = 3;

  /** Most tokens of a text with its question, however many the model takes. */
  static final int TOKENS = 512;

  /** No text is shorter, in tokens, and tokens for the questions. */
  private static final int LEAST = 512;

  private static final int QUESTION = 48;

  /** No text has more characters a token. */
  private static final int CHARACTERS = 6;

  private static final long SEED = 17;

  private static final List<String> PLACES =
      List.of("Paris", "Rome", "Oslo", "Cairo", "Delhi", "Lima", "Quito", "Prague", "Vienna", "Dublin", "Madrid", "Tokyo",
          "Berlin", "Havana", "Athens", "Warsaw", "Lisbon", "London", "Moscow", "Boston");

  private Passkeys() {}

  /**
   * So many instances.
   *
   * @param texts held-out text, to be taken in turn
   * @param context the model's, in tokens
   * @throws ModelException if the context or the text is too short
   */
  static List<Sample> read(List<byte[]> texts, Tokenizer tokenizer, int count, int context) throws ModelException {
    if (context < LEAST) {
      throw new ModelException("a context of " + context + " tokens is too short for pass keys: " + LEAST + " or more");
    }
    int tokens = Math.min(TOKENS, context);
    Random random = new Random(SEED);
    List<Sample> samples = new ArrayList<>();
    for (int number = 0; samples.size() < count; number++) {
      String text = new String(texts.get(number % texts.size()), StandardCharsets.UTF_8);
      int longest = CHARACTERS * tokens;
      int from = text.length() > longest ? number / texts.size() * longest % (text.length() - longest) : 0;
      samples.addAll(about(text.substring(from), tokenizer, tokens, random));
    }
    return List.copyOf(samples.subList(0, count));
  }

  /** The first text of {@link #read}, as text. */
  static HiddenKeys first(byte[] text, Tokenizer tokenizer, int context) throws ModelException {
    return hide(new String(text, StandardCharsets.UTF_8), tokenizer, Math.min(TOKENS, context), new Random(SEED));
  }

  private static List<Sample> about(String text, Tokenizer tokenizer, int tokens, Random random)
      throws ModelException {
    HiddenKeys hidden = hide(text, tokenizer, tokens, random);
    int[] read = joined(tokenizer.prefix(), tokenizer.encode(hidden.text()));
    List<Sample> samples = new ArrayList<>();
    for (int i = 0; i < KEYS; i++) {
      int[] asked = joined(read, tokenizer.encode(hidden.questions().get(i)));
      samples.add(new Sample(NAME, true, joined(asked, answer(tokenizer, hidden.keys().get(i))), asked.length - 1));
    }
    return samples;
  }

  private static HiddenKeys hide(String text, Tokenizer tokenizer, int tokens, Random random) throws ModelException {
    List<String> places = new ArrayList<>(PLACES);
    java.util.Collections.shuffle(places, random);
    List<String> keys =
        IntStream.range(0, KEYS).mapToObj(i -> String.format(Locale.ROOT, "%05d", random.nextInt(100000))).toList();
    List<String> questions = places.stream().limit(KEYS).map(place -> "\n\nThe pass key of " + place + " is").toList();
    int most = tokens - tokenizer.prefix().length - QUESTION;
    // Characters for a token differ from text to text: too many at first, then fewer until they fit.
    for (int length = CHARACTERS * tokens; length > tokens / 8 && text.length() >= tokens / 8; length -= tokens / 16) {
      String story = hidden(text.substring(0, Math.min(text.length(), length)), places, keys);
      if (tokenizer.encode(story).length <= most) {
        return new HiddenKeys(story, questions, keys);
      }
    }
    throw new ModelException("the texts are too short to hide pass keys in");
  }

  /** Tokens of the key as they would follow a word: some tokenizers put the blank before it by themselves. */
  private static int[] answer(Tokenizer tokenizer, String key) {
    int[] word = tokenizer.encode("is");
    int[] both = tokenizer.encode("is " + key);
    boolean begins = both.length > word.length && Arrays.equals(word, 0, word.length, both, 0, word.length);
    return begins ? Arrays.copyOfRange(both, word.length, both.length) : tokenizer.encode(" " + key);
  }

  /** The text with a sentence for each key, after the sentences nearest to even depths. */
  private static String hidden(String text, List<String> places, List<String> keys) {
    StringBuilder out = new StringBuilder();
    int at = 0;
    for (int i = 0; i < KEYS; i++) {
      int depth = (2 * i + 1) * text.length() / (2 * KEYS);
      int end = text.indexOf(". ", depth);
      int cut = end < 0 ? depth : end + 2;
      out.append(text, at, Math.max(at, cut));
      String said = "he pass key of " + places.get(i) + " is " + keys.get(i) + ".";
      out.append("\n\nT").append(said).append(" Remember it: t").append(said).append("\n\n");
      at = Math.max(at, cut);
    }
    return out.append(text, at, text.length()).toString();
  }

  private static int[] joined(int[] first, int[] second) {
    return IntStream.concat(Arrays.stream(first), Arrays.stream(second)).toArray();
  }
}
