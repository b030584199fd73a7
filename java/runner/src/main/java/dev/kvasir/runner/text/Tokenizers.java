package dev.kvasir.runner.text;

import dev.kvasir.runner.file.Gguf;
import dev.kvasir.runner.file.Json;
import dev.kvasir.runner.file.ModelException;
import dev.kvasir.runner.file.Texts;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.regex.PatternSyntaxException;
import org.jspecify.annotations.Nullable;

/** The tokenizer of a model, from whatever its files are. */
public final class Tokenizers {

  private Tokenizers() {}

  /**
   * The tokenizer of a folder: {@code tokenizer.json}, or bytes where there is none and the vocabulary is that small.
   *
   * @throws ModelException if there is neither, or the file describes something else than BPE
   */
  public static Tokenizer of(Path folder, int vocabulary, OptionalInt bos) throws IOException {
    Path file = folder.resolve("tokenizer.json");
    if (Files.exists(file)) {
      try {
        return new TokenizerJson(Json.read(file), settings(folder), vocabulary, file.toString()).tokenizer();
      } catch (Json.JsonException | PatternSyntaxException e) {
        throw new ModelException(file + ": " + e.getMessage(), e);
      }
    }
    if (vocabulary < 256 || vocabulary > 512) {
      throw new ModelException(
          folder + " has no tokenizer.json, and a vocabulary of " + vocabulary + " is not one of bytes");
    }
    if (bos.isPresent() && (bos.getAsInt() < 0 || bos.getAsInt() >= vocabulary)) {
      throw new ModelException(
          folder + ": the token " + bos.getAsInt() + " before every text is not one of " + vocabulary);
    }
    return new ByteTokenizer(bos);
  }

  /**
   * The tokenizer of a GGUF file.
   *
   * @throws ModelException if it is neither SentencePiece's BPE nor byte-level BPE, or cuts words in an unknown way
   */
  public static Tokenizer of(Gguf file) throws IOException {
    return new GgufVocabulary(file).tokenizer();
  }

  /** The tokens of a GGUF file that end a text, a turn or a message by their names, whatever else the file calls its end. */
  public static List<Integer> ends(Gguf file) throws IOException {
    return new GgufVocabulary(file).ends();
  }

  /** Of several templates that have names, the one of that name. */
  private static Optional<String> defaultOf(Json template) {
    return (template.isList() ? template.list() : List.<Json>of())
        .stream()
            .filter(each -> each.get("name").text().equals("default"))
            .map(each -> each.get("template"))
            .findFirst()
            .or(() -> Optional.of(template).filter(Json::isText))
            .map(Json::text);
  }

  /** The chat template of a folder: of its own file, or in {@code tokenizer_config.json}; null where there is none. */
  public static @Nullable String template(Path folder) throws IOException {
    Path own = folder.resolve("chat_template.jinja");
    if (Files.exists(own)) {
      return Texts.read(own);
    }
    try {
      return settings(folder).find("chat_template").flatMap(Tokenizers::defaultOf).orElse(null);
    } catch (Json.JsonException e) {
      throw new ModelException(e.getMessage(), e);
    }
  }

  /** What the chat template of a folder means by {@code bos_token}. */
  public static OptionalInt begin(Path folder, Tokenizer tokenizer) throws IOException {
    try {
      return bosOf(settings(folder)).map(tokenizer::special).orElse(OptionalInt.empty());
    } catch (Json.JsonException e) {
      throw new ModelException(e.getMessage(), e);
    }
  }

  /** The token that begins texts: a text, or an object that has it. */
  static Optional<String> bosOf(Json settings) {
    return settings.find("bos_token").map(token -> token.isObject() ? token.get("content") : token).map(Json::text);
  }

  /** {@code tokenizer_config.json}, or an object of nothing. */
  private static Json settings(Path folder) throws IOException {
    Path file = folder.resolve("tokenizer_config.json");
    try {
      return Files.exists(file) ? Json.read(file) : Json.parse("{}", file.toString());
    } catch (Json.JsonException e) {
      throw new ModelException(e.getMessage(), e);
    }
  }
}
