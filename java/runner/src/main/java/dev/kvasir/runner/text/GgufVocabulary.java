package dev.kvasir.runner.text;

import dev.kvasir.runner.file.Gguf;
import dev.kvasir.runner.file.ModelException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/** Reads the vocabulary of a GGUF file: {@code llama} is SentencePiece's BPE, {@code gpt2} byte-level BPE. */
final class GgufVocabulary {

  // Types of tokens, as tokenizer.ggml.token_type has them.
  private static final int UNKNOWN = 2;
  private static final int CONTROL = 3;
  private static final int USER_DEFINED = 4;

  /** Control tokens that end a text, a turn or a message wherever they are: files name one of several as their end. */
  private static final Set<String> ENDS =
      Set.of(
          "</s>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|EOT|>",
          "<end_of_turn>", "<｜end▁of▁sentence｜>");

  /**
   * How a vocabulary's words come about.
   *
   * @param cuts expressions that cut texts, each within what the one before leaves
   * @param whole whether a word that is a token is that token, and texts begin with BOS unless the file says otherwise
   */
  private record Words(List<String> cuts, boolean whole) {}

  /** By the names that tokenizer.ggml.pre gives. */
  private static final Map<String, Words> WORDS = new HashMap<>();

  static {
    String signs = "| ?[^\\s\\p{L}\\p{N}]+", spaces = "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    String tail = signs + "[\\r\\n]*" + spaces;
    String head = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|";
    List<String> llama3 = List.of(head + "\\p{N}{1,3}" + tail), qwen2 = List.of(head + "\\p{N}" + tail);
    for (String name : List.of("llama-bpe", "llama3", "llama-v3", "falcon3", "midm-2.0", "pixtral")) {
      WORDS.put(name, new Words(llama3, true));
    }
    WORDS.put("smaug-bpe", new Words(llama3, false));
    for (String name : List.of("qwen2", "deepseek-r1-qwen", "megrez")) {
      WORDS.put(name, new Words(qwen2, false));
    }
    // Words begin anew at a capital after small letters; letters of scripts without either are both.
    String lead = "[^\\r\\n\\p{L}\\p{N}]?", both = "\\p{Lm}\\p{Lo}\\p{M}";
    String capital = "[\\p{Lu}\\p{Lt}" + both + "]", small = "[\\p{Ll}" + both + "]";
    String tekken =
        lead + capital + "*" + small + "+|" + lead + capital + "+" + small + "*|\\p{N}" + signs + "[\\r\\n/]*" + spaces;
    WORDS.put("tekken", new Words(List.of(tekken), true));
    for (String name : List.of("gpt-2", "a.x-4.0", "mellum", "trillion")) {
      WORDS.put(name, new Words(List.of(BpeTokenizer.GPT2_WORDS), false));
    }
    for (String name : List.of("smollm", "minerva-7b", "refact", "starcoder")) {
      WORDS.put(name, new Words(List.of("\\p{N}", BpeTokenizer.GPT2_WORDS), false));
    }
    WORDS.put("seed-coder", new Words(List.of(head + "\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+" + spaces), false));
    String asian = "[\\u4E00-\\u9FA5\\u0800-\\u4E00\\uAC00-\\uD7FF]+", ends = "[\\r\\n]";
    List<String> coder = List.of(ends, "\\s?\\p{L}+", "\\s?\\p{P}+", asian, "\\p{N}");
    WORDS.put("deepseek-coder", new Words(coder, false));
    String named = "[!-/:-@\\[-`{-~][A-Za-z]+", marked = "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+";
    String other = named + marked + "| ?[\\p{P}\\p{S}]+[\\r\\n]*" + spaces;
    WORDS.put("deepseek-v3", new Words(List.of("\\p{N}{1,3}", "[\\u4E00-\\u9FA5\\u3040-\\u30FF]+", other), false));
    // That of llama.cpp, which takes files that say nothing for the same.
    List<String> standard =
        List.of("[\\p{P}\\$\\+<=>\\^~\\|]+", BpeTokenizer.GPT2_WORDS, "\\p{N}+", "[0-9][0-9][0-9]");
    WORDS.put("default", new Words(standard, false));
  }

  private final Gguf file;
  private final String place;

  GgufVocabulary(Gguf file) {
    this.file = file;
    this.place = file.path().toString();
  }

  Tokenizer tokenizer() throws ModelException {
    String model = file.text("tokenizer.ggml.model");
    String[] tokens = file.texts("tokenizer.ggml.tokens");
    double @Nullable [] types = numbers("tokenizer.ggml.token_type", tokens.length);
    SpecialTokens specials = new SpecialTokens();
    Map<String, Integer> vocabulary = new HashMap<>();
    for (int id = 0; id < tokens.length; id++) {
      int type = types == null ? 1 : (int) types[id];
      if (type == CONTROL || type == UNKNOWN) {
        specials.special(tokens[id], id);
      } else if (type == USER_DEFINED) {
        specials.added(tokens[id], new SpecialTokens.Added(id, true, false, false));
      } else {
        vocabulary.put(tokens[id], id);
      }
    }
    switch (model) {
      case "llama":
        return sentencePiece(vocabulary, specials, tokens.length);
      case "gpt2":
        return byteLevel(vocabulary, specials, tokens.length);
      default:
        throw new ModelException(place + ": tokenizer.ggml.model is \"" + model + "\"; llama and gpt2 can be read");
    }
  }

  /** The tokens that end texts by their names; none where the file has no vocabulary, or does not say of which type. */
  List<Integer> ends() throws ModelException {
    List<Integer> ends = new ArrayList<>();
    if (file.says("tokenizer.ggml.tokens")) {
      String[] tokens = file.texts("tokenizer.ggml.tokens");
      double @Nullable [] types = numbers("tokenizer.ggml.token_type", tokens.length);
      for (int id = 0; types != null && id < tokens.length; id++) {
        if (types[id] == CONTROL && ENDS.contains(tokens[id])) {
          ends.add(id);
        }
      }
    }
    return ends;
  }

  private Tokenizer sentencePiece(Map<String, Integer> vocabulary, SpecialTokens specials, int size)
      throws ModelException {
    double @Nullable [] given = numbers("tokenizer.ggml.scores", size);
    if (given == null) {
      throw new ModelException(place + " has no tokenizer.ggml.scores");
    }
    float[] scores = new float[size];
    for (int i = 0; i < size; i++) {
      scores[i] = (float) given[i];
    }
    return new SentencePieceTokenizer(
        new SentencePieceTokenizer.Description(
            vocabulary,
            scores,
            null,
            file.findFlag("tokenizer.ggml.add_space_prefix").orElse(true)
                ? SentencePieceTokenizer.SpaceBefore.ALWAYS
                : SentencePieceTokenizer.SpaceBefore.NEVER,
            specials,
            prefix(true, size),
            token("tokenizer.ggml.unknown_token_id", size, 0)),
        place);
  }

  private Tokenizer byteLevel(Map<String, Integer> vocabulary, SpecialTokens specials, int size)
      throws ModelException {
    String pre = file.findText("tokenizer.ggml.pre").orElse("default");
    Words words = WORDS.get(pre);
    if (words == null) {
      throw new ModelException(
          place + ": tokenizer.ggml.pre is \"" + pre + "\"; "
              + String.join(", ", WORDS.keySet().stream().sorted().toList()) + " can be read");
    }
    List<String[]> merges = new ArrayList<>();
    for (String merge : file.texts("tokenizer.ggml.merges")) {
      // A piece may begin with a space of its own only in vocabularies that are not byte-level.
      String[] pair = merge.split(" ", 2);
      if (pair.length != 2) {
        throw new ModelException(place + ": the merge \"" + merge + "\" is no pair");
      }
      merges.add(pair);
    }
    return new BpeTokenizer(
        new BpeTokenizer.Description(
            vocabulary,
            merges,
            words.cuts().stream().map(BpeTokenizer::words).toList(),
            false,
            words.whole(),
            specials,
            prefix(words.whole(), size)),
        place);
  }

  private int[] prefix(boolean standard, int size) throws ModelException {
    if (!file.findFlag("tokenizer.ggml.add_bos_token").orElse(standard)) {
      return new int[0];
    }
    int bos = token("tokenizer.ggml.bos_token_id", size, -1);
    return bos < 0 ? new int[0] : new int[] {bos};
  }

  private int token(String key, int size, int standard) throws ModelException {
    int id = file.findInteger(key).orElse(standard);
    if (id >= size || id < -1) {
      throw new ModelException(place + ": " + key + " is " + id + " of " + size + " tokens");
    }
    return id;
  }

  private double @Nullable [] numbers(String key, int size) throws ModelException {
    double @Nullable [] found = file.findNumbers(key).orElse(null);
    if (found != null && found.length != size) {
      throw new ModelException(place + ": " + key + " has " + found.length + " elements for " + size + " tokens");
    }
    return found;
  }
}
