package dev.kvasir.runner.text;

import dev.kvasir.runner.file.Json;
import dev.kvasir.runner.file.ModelException;
import dev.kvasir.runner.text.SentencePieceTokenizer.SpaceBefore;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.regex.Pattern;

/** Reads {@code tokenizer.json}: byte-level BPE, or SentencePiece's BPE, which falls back to bytes. */
final class TokenizerJson {

  /** What compiles here and means something else to Oniguruma, which files are written for. */
  private static final Pattern ELSEWHERE = Pattern.compile("\\[:\\^?[a-z]+:]|\\\\h|\\(\\?[a-z]*m");

  /** A class that goes by its settings alone as to what stands before a text, whatever tokenizer.json says. */
  private static final Pattern LLAMA = Pattern.compile("LlamaTokenizer(?:Fast)?");

  private final Json json;
  private final Json settings;
  private final int size;
  private final String place;

  /** Of a model with a vocabulary of so many tokens, and with what tokenizer_config.json says. */
  TokenizerJson(Json json, Json settings, int size, String place) {
    this.json = json;
    this.settings = settings;
    this.size = size;
    this.place = place;
  }

  Tokenizer tokenizer() throws ModelException {
    Json model = json.get("model");
    String type = model.find("type").map(Json::text).orElse("BPE");
    if (!type.equals("BPE")) {
      throw new ModelException(place + ": a " + type + " model; BPE can be read");
    }
    for (String mark : List.of("continuing_subword_prefix", "end_of_word_suffix")) {
      if (!model.find(mark).map(Json::text).orElse("").isEmpty()) {
        throw new ModelException(place + ": pieces are marked by a " + mark + ", which is not supported");
      }
    }
    Map<String, Integer> vocabulary = new HashMap<>();
    model.get("vocab").map().forEach((token, id) -> vocabulary.put(token, id(id)));
    SpecialTokens specials = specials();
    int[] prefix = prefix(specials);
    if (model.find("byte_fallback").map(Json::flag).orElse(false)) {
      int unknown = model.find("unk_token").map(token -> vocabulary.getOrDefault(token.text(), 0)).orElse(0);
      return new SentencePieceTokenizer(
          new SentencePieceTokenizer.Description(
              vocabulary, null, wordMerges(model), spaceBefore(), specials, prefix, unknown),
          place);
    }
    boolean composed = false;
    for (Json step : steps("normalizer", "normalizers")) {
      composed = true;
      if (!step.get("type").text().equals("NFC")) {
        throw new ModelException(
            place + ": the normalizer is " + step.get("type").text() + "; none and NFC can be read");
      }
    }
    List<Pattern> words = new ArrayList<>();
    for (Json step : steps("pre_tokenizer", "pretokenizers")) {
      addWords(step, words);
    }
    boolean wholeWords = model.find("ignore_merges").map(Json::flag).orElse(false);
    return new BpeTokenizer(
        new BpeTokenizer.Description(vocabulary, merges(model), words, composed, wholeWords, specials, prefix), place);
  }

  private List<String[]> merges(Json model) throws ModelException {
    List<String[]> merges = new ArrayList<>();
    for (Json merge : model.get("merges").list()) {
      // Older files join the pair by a space.
      String[] pair =
          merge.isText()
              ? merge.text().split(" ", 2)
              : merge.list().stream().map(Json::text).toArray(String[]::new);
      if (pair.length != 2) {
        throw new ModelException(place + ": the merge " + merge + " is no pair");
      }
      merges.add(pair);
    }
    return merges;
  }

  /** Without those that reach into the next word, where a step cuts before every space. */
  private List<String[]> wordMerges(Json model) throws ModelException {
    List<String[]> merges = merges(model);
    for (Json step : steps("pre_tokenizer", "pretokenizers")) {
      if (step.find("split").map(Json::flag).orElse(true)) {
        merges.removeIf(pair -> (pair[0] + pair[1]).indexOf(SentencePieceTokenizer.SPACE, 1) > 0);
      }
    }
    return merges;
  }

  /** Ids beyond the model's vocabulary may be there, as long as nothing leads to them. */
  private static int id(Json json) {
    int id = json.integer();
    if (id < 0) {
      throw new Json.JsonException("the id of a token is " + id);
    }
    return id;
  }

  private SpecialTokens specials() throws ModelException {
    SpecialTokens specials = new SpecialTokens();
    for (Json token : json.find("added_tokens").map(Json::list).orElse(List.of())) {
      String content = token.get("content").text();
      if (token.find("special").map(Json::flag).orElse(false)) {
        specials.special(content, id(token.get("id")));
      } else {
        if (flag(token, "single_word", false)) {
          throw new ModelException(
              place + ": the added token " + content + " is single_word, which is not supported");
        }
        specials.added(
            content,
            new SpecialTokens.Added(
                id(token.get("id")),
                !flag(token, "normalized", true),
                flag(token, "lstrip", false),
                flag(token, "rstrip", false)));
      }
    }
    return specials;
  }

  private static boolean flag(Json json, String name, boolean standard) {
    return json.find(name).map(Json::flag).orElse(standard);
  }

  private static boolean isMark(Optional<Json> text) {
    return text.filter(Json::isText).map(Json::text).orElse("").equals(String.valueOf(SentencePieceTokenizer.SPACE));
  }

  /** Whether every text begins with a space: by a normalizer that prepends one, or a step that replaces them. */
  private SpaceBefore spaceBefore() throws ModelException {
    SpaceBefore before = SpaceBefore.NEVER;
    boolean replaced = false;
    for (Json step : steps("normalizer", "normalizers")) {
      String type = step.get("type").text();
      if (type.equals("Prepend") && isMark(step.find("prepend"))) {
        before = SpaceBefore.ALWAYS;
      } else if (type.equals("Replace")
          && isMark(step.find("content"))
          && step.get("pattern").find("String").map(Json::text).orElse("").equals(" ")) {
        replaced = true;
      } else {
        throw new ModelException(place + ": the normalizer " + type + " is not one of SentencePiece's BPE");
      }
    }
    for (Json step : steps("pre_tokenizer", "pretokenizers")) {
      if (!step.get("type").text().equals("Metaspace") || !isMark(step.find("replacement"))) {
        throw new ModelException(place + ": the step " + step.get("type").text() + " is not one of SentencePiece's BPE");
      }
      replaced = true;
      // Older files have add_prefix_space.
      String scheme = step.find("prepend_scheme").map(Json::text).orElse("always");
      boolean prepended = step.find("add_prefix_space").map(Json::flag).orElse(true) && !scheme.equals("never");
      if (prepended && before == SpaceBefore.NEVER) {
        before = scheme.equals("first") ? SpaceBefore.UNLESS_THERE : SpaceBefore.EACH_UNLESS_THERE;
      }
    }
    if (!replaced) {
      throw new ModelException(place + ": nothing replaces spaces, so it is not SentencePiece's BPE");
    }
    return before;
  }

  private void addWords(Json step, List<Pattern> words) throws ModelException {
    String type = step.get("type").text();
    if (type.equals("ByteLevel")) {
      if (step.find("add_prefix_space").map(Json::flag).orElse(false)) {
        throw new ModelException(place + ": add_prefix_space is true, which is not supported");
      }
      if (step.find("use_regex").map(Json::flag).orElse(true)) {
        words.add(BpeTokenizer.words(BpeTokenizer.GPT2_WORDS));
      }
    } else if (type.equals("Split") && step.get("pattern").find("Regex").isPresent()) {
      String behaviour = step.get("behavior").text();
      if (!behaviour.equals("Isolated") && !behaviour.equals("Removed")
          || behaviour.equals("Removed") != step.find("invert").map(Json::flag).orElse(false)) {
        throw new ModelException(place + ": a Split step that neither isolates nor keeps what it matches");
      }
      String expression = step.get("pattern").get("Regex").text();
      if (ELSEWHERE.matcher(expression).find()) {
        throw new ModelException(
            place + ": the expression of a Split step has [:class:], \\h or (?m), which are not supported");
      }
      words.add(BpeTokenizer.words(expression));
    } else if (type.equals("Digits")) {
      words.add(BpeTokenizer.words(flag(step, "individual_digits", false) ? "\\p{N}" : "\\p{N}+"));
    } else {
      throw new ModelException(
          place + ": a pre-tokenizer step " + type + "; ByteLevel, Digits and Split by a Regex can be read");
    }
  }

  /** A step, or the steps of a sequence of them. */
  private List<Json> steps(String name, String members) {
    return json.find(name)
        .map(step -> step.get("type").text().equals("Sequence") ? step.get(members).list() : List.of(step))
        .orElse(List.of());
  }

  /** The special tokens before a text. */
  private int[] prefix(SpecialTokens specials) throws ModelException {
    int[] prefix = processed();
    if (LLAMA.matcher(settings.find("tokenizer_class").map(Json::text).orElse("")).matches()) {
      OptionalInt bos = Tokenizers.bosOf(settings).map(specials::find).orElse(OptionalInt.empty());
      if (!flag(settings, "add_bos_token", true)) {
        return new int[0];
      }
      return bos.isPresent() ? new int[] {checked(bos.getAsInt())} : prefix;
    }
    return prefix;
  }

  /** Those that a template puts there. */
  private int[] processed() throws ModelException {
    int[] prefix = new int[0];
    for (Json step : steps("post_processor", "processors")) {
      String type = step.get("type").text();
      if (!type.equals("TemplateProcessing") && !type.equals("ByteLevel")) {
        throw new ModelException(
            place + ": the post-processor is " + type + "; TemplateProcessing and ByteLevel can be read");
      }
      if (step.find("single").isPresent()) {
        List<Integer> ids = new ArrayList<>();
        for (Json piece : step.get("single").list()) {
          if (piece.find("Sequence").isPresent()) {
            break;
          }
          String name = piece.get("SpecialToken").get("id").text();
          Arrays.stream(step.get("special_tokens").get(name).get("ids").integers()).forEach(ids::add);
        }
        prefix = new int[ids.size()];
        for (int i = 0; i < prefix.length; i++) {
          prefix[i] = checked(ids.get(i));
        }
      }
    }
    return prefix;
  }

  private int checked(int id) throws ModelException {
    if (id < 0 || id >= size) {
      throw new ModelException(place + ": the token " + id + " before every text is not one of " + size);
    }
    return id;
  }
}
