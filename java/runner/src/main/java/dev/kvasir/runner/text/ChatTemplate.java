package dev.kvasir.runner.text;

import dev.kvasir.runner.file.ModelException;
import java.util.List;
import java.util.OptionalInt;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * How a conversation is written for a model: which tokens stand around what was said.
 *
 * <p>Files have templates as little programs. Those are not run: the family that a template belongs to is recognised by
 * its marks, and written here. One that belongs to none is refused. What a template would say of its own accord, such as
 * a system's message where there is none, is not written.
 */
public final class ChatTemplate {

  /** Who speaks. */
  public enum Role {
    /** Says how to answer. */
    SYSTEM,
    /** Asks. */
    USER,
    /** Answers. */
    ASSISTANT;

    String text() {
      return name().toLowerCase(java.util.Locale.ROOT);
    }
  }

  /**
   * Something that was said.
   *
   * @param role who said it
   * @param text what was said
   */
  public record Message(Role role, String text) {}

  /** The families that are known. */
  public enum Family {
    /** {@code <|im_start|>user\n...<|im_end|>}: Qwen and others. */
    CHAT_ML,
    /** {@code <|start_header_id|>user<|end_header_id|>\n\n...<|eot_id|>}. */
    LLAMA_3,
    /** {@code <|user|>\n...</s>}: Zephyr, TinyLlama. */
    ZEPHYR,
    /** {@code [INST] ... [/INST]}, with {@code <<SYS>>} for the system. */
    LLAMA_2,
    /** {@code [INST] ... [/INST]}, the system's message before all, before the first of the user's or before the last. */
    MISTRAL,
    /** {@code <｜User｜>...<｜Assistant｜>...<｜end▁of▁sentence｜>}, the system's message before all. */
    DEEPSEEK
  }

  /** A user's turn that the end of a text ends. Others with the same marks have another end, or none. */
  private static final Pattern ZEPHYR_TURN = Pattern.compile("<\\|user\\|>[^}]*eos_token");

  /** An answer that the template begins with a thought. */
  private static final Pattern THOUGHT =
      Pattern.compile("(?:assistant(?:\\\\n|\n)|<｜Assistant｜>)<think>(?:\\\\n|\n)['\"]");

  private static final String THOUGHT_END = "</think>";

  /** Where Mistral's templates write the system's message: the first version before the first turn, the third before the last. */
  private static final Pattern MISTRAL_FIRST = Pattern.compile("if loop\\.first and system_message is defined");

  private static final Pattern MISTRAL_LAST = Pattern.compile("if loop\\.last and system_message is defined");

  /** A system's message among the others: templates look for one that begins the conversation otherwise. */
  private static final Pattern AMONG_OTHERS = Pattern.compile("message\\[['\"]role['\"]] == ['\"]system['\"]");

  /** Where a family, or a template of it, has a place for the system's message. */
  private enum Place {
    /** Where it was said. */
    OWN,
    /** Before all else. */
    BEGINNING,
    /** In the first message of the user's. */
    FIRST,
    /** In the last message of all, which is the user's, though it was said first. */
    LAST,
    /** There is none. */
    NONE
  }

  private final Family family;
  private final Tokenizer tokenizer;
  private final String model;
  /** What stands before a conversation. */
  private final int[] begin;
  /** What an answer begins with, as the model is told. */
  private final String opening;
  /** Whether answers of former turns are told without their thoughts. */
  private final boolean forgetsThoughts;
  private final Place place;

  private ChatTemplate(Family family, String template, Tokenizer tokenizer, OptionalInt bos, String model) {
    this.family = family;
    this.tokenizer = tokenizer;
    this.model = model;
    int[] prefix = tokenizer.prefix();
    this.begin = prefix.length == 0 && template.contains("bos_token") ? bos.stream().toArray() : prefix;
    this.opening = THOUGHT.matcher(template).find() ? "<think>\n" : "";
    this.forgetsThoughts = template.contains("split('</think>')[-1]");
    this.place = family == Family.MISTRAL ? mistralPlace(template) : Place.OWN;
  }

  private static Place mistralPlace(String template) {
    boolean first = MISTRAL_FIRST.matcher(template).find();
    boolean last = MISTRAL_LAST.matcher(template).find();
    if (template.contains("[SYSTEM_PROMPT]")) {
      if (first || last) {
        return Place.NONE; // which mark stands where is not known
      }
      return AMONG_OTHERS.matcher(template).find() ? Place.OWN : Place.BEGINNING;
    }
    return first == last ? Place.NONE : first ? Place.FIRST : Place.LAST;
  }

  /** The template of a model without a token that begins texts, or whose tokenizer writes it. */
  public static ChatTemplate of(@Nullable String template, Tokenizer tokenizer, String model) throws ModelException {
    return of(template, tokenizer, OptionalInt.empty(), model);
  }

  /**
   * The template of a model.
   *
   * @param template what its files say, or null
   * @param bos what the template means by {@code bos_token}, which some templates write where the tokenizer does not
   * @param model what errors call it
   * @throws ModelException if there is none, or its family is not known
   */
  public static ChatTemplate of(@Nullable String template, Tokenizer tokenizer, OptionalInt bos, String model)
      throws ModelException {
    if (template == null) {
      throw new ModelException(model + " has no chat template: it was not made for conversations");
    }
    Family family = familyOf(template);
    if (family == null) {
      throw new ModelException(
          model + " has a chat template of no known family; ChatML, Llama 3, Zephyr, Llama 2, Mistral and"
              + " DeepSeek can be written");
    }
    ChatTemplate known = new ChatTemplate(family, template, tokenizer, bos, model);
    known.end(); // the marks that it needs must be tokens
    return known;
  }

  private static @Nullable Family familyOf(String template) {
    if (template.contains("<|im_start|>")) {
      // Phi-4 and SmolVLM have the mark, and others beside it.
      return template.contains("<|im_sep|>") || template.contains("<end_of_utterance>") ? null : Family.CHAT_ML;
    }
    if (template.contains("<|start_header_id|>")) {
      return Family.LLAMA_3;
    }
    if (template.contains("<|assistant|>") && ZEPHYR_TURN.matcher(template).find()) {
      return Family.ZEPHYR;
    }
    if (template.contains("<｜User｜>") && template.contains("<｜Assistant｜>")) {
      return template.contains("'</think>'}}") ? null : Family.DEEPSEEK; // newer ones end thoughts themselves
    }
    if (template.contains("[INST]")) {
      return template.contains("<<SYS>>") ? Family.LLAMA_2 : Family.MISTRAL;
    }
    return null;
  }

  /** The family. */
  public Family family() {
    return family;
  }

  /**
   * Whether the template writes the system's message into the last of all: where more is said, it moves there, and the turns
   * before are written without it.
   */
  public boolean systemMoves() {
    return place == Place.LAST;
  }

  /** The token that ends an answer. */
  public int end() throws ModelException {
    return switch (family) {
      case CHAT_ML -> mark("<|im_end|>");
      case LLAMA_3 -> mark("<|eot_id|>");
      case ZEPHYR, LLAMA_2, MISTRAL -> mark("</s>");
      case DEEPSEEK -> mark("<｜end▁of▁sentence｜>");
    };
  }

  /**
   * The tokens of messages that follow those before, and of what makes the model answer.
   *
   * @param messages what is new; where {@link #systemMoves}, each call may begin with the system's message
   * @param first whether nothing was said before: the tokens then begin with the model's prefix
   * @throws ModelException if the family has no place for a message
   */
  public int[] encode(List<Message> messages, boolean first) throws ModelException {
    IntStream.Builder out = IntStream.builder();
    if (first) {
      add(out, begin);
    }
    if (family == Family.CHAT_ML && !first) {
      text(out, "\n"); // what follows the end of the answer, which the model does not write
    }
    String system = "";
    int last = messages.size() - 1;
    for (int i = 0; i < messages.size(); i++) {
      Message message = messages.get(i);
      switch (family) {
        case CHAT_ML -> {
          out.add(mark("<|im_start|>"));
          text(out, message.role().text() + "\n" + told(message));
          out.add(mark("<|im_end|>"));
          text(out, "\n");
        }
        case LLAMA_3 -> {
          header(out, message.role());
          text(out, message.text().strip());
          out.add(mark("<|eot_id|>"));
        }
        case ZEPHYR -> {
          text(out, (first && i == 0 ? "" : "\n") + "<|" + message.role().text() + "|>\n" + message.text());
          out.add(mark("</s>"));
        }
        case LLAMA_2, MISTRAL -> {
          if (message.role() == Role.SYSTEM && family == Family.MISTRAL) {
            requirePlace(first, i);
          }
          boolean waits = place == Place.LAST && message.role() == Role.USER && i < last;
          String told = instruct(out, message, waits ? "" : system, first && i == 0);
          system = waits ? system : told;
        }
        case DEEPSEEK -> say(out, message, first && i == 0);
      }
    }
    switch (family) {
      case CHAT_ML -> {
        out.add(mark("<|im_start|>"));
        text(out, "assistant\n" + opening);
      }
      case LLAMA_3 -> header(out, Role.ASSISTANT);
      case ZEPHYR -> text(out, "\n<|assistant|>\n");
      case DEEPSEEK -> {
        out.add(mark("<｜Assistant｜>"));
        text(out, opening);
      }
      case LLAMA_2, MISTRAL -> {
        if (!system.isEmpty()) {
          throw new ModelException(model + " has no place for a system's message that no user's follows");
        }
      }
    }
    return out.build().toArray();
  }

  /** Throws ModelException where a template of Mistral's has no place for a system's message that is this one of a call. */
  private void requirePlace(boolean first, int index) throws ModelException {
    if (place == Place.NONE) {
      throw new ModelException(model + " has no place for a system's message, or none that is known, in its chat template");
    }
    if (place != Place.OWN && (index > 0 || !first && place != Place.LAST)) {
      throw new ModelException(model + " has no place for a system's message that is not the first");
    }
  }

  /** What a message is for those that follow. */
  private String told(Message message) {
    int end = message.text().lastIndexOf(THOUGHT_END);
    if (!forgetsThoughts || message.role() != Role.ASSISTANT || end < 0) {
      return message.text();
    }
    String answer = message.text().substring(end + THOUGHT_END.length());
    return family == Family.CHAT_ML ? answer.replaceFirst("^\n+", "") : answer;
  }

  private void say(IntStream.Builder out, Message message, boolean begun) throws ModelException {
    switch (message.role()) {
      case SYSTEM:
        if (!begun) {
          throw new ModelException(model + " has no place for a system's message that is not the first");
        }
        text(out, message.text());
        break;
      case ASSISTANT:
        out.add(mark("<｜Assistant｜>"));
        text(out, told(message));
        out.add(mark("<｜end▁of▁sentence｜>"));
        break;
      default:
        out.add(mark("<｜User｜>"));
        text(out, message.text());
    }
  }

  /** Writes an instruction or an answer; a system's message is kept for the user's that follows. Returns that. */
  private String instruct(IntStream.Builder out, Message message, String system, boolean begun) throws ModelException {
    switch (message.role()) {
      case SYSTEM:
        if (family == Family.MISTRAL && (place == Place.OWN || place == Place.BEGINNING)) {
          out.add(mark("[SYSTEM_PROMPT]"));
          text(out, message.text());
          out.add(mark("[/SYSTEM_PROMPT]"));
          return system;
        }
        if (!system.isEmpty()) {
          throw new ModelException(model + " has no place for two system's messages before a user's");
        }
        return family == Family.LLAMA_2
            ? "<<SYS>>\n" + message.text() + "\n<</SYS>>\n\n"
            : message.text() + "\n\n";
      case ASSISTANT:
        text(out, message.text());
        out.add(mark("</s>"));
        return system;
      default:
        // Llama 2 begins every turn anew; the first has its beginning already.
        if (family == Family.LLAMA_2 && !begun && system.isEmpty()) {
          add(out, begin);
        }
        // Older vocabularies lack the marks: there they are text, with spaces.
        if (isToken("[INST]") && isToken("[/INST]")) {
          out.add(mark("[INST]"));
          text(out, system + message.text());
          out.add(mark("[/INST]"));
        } else {
          text(out, "[INST] " + system + message.text() + " [/INST]");
        }
        return "";
    }
  }

  private void header(IntStream.Builder out, Role role) throws ModelException {
    out.add(mark("<|start_header_id|>"));
    text(out, role.text());
    out.add(mark("<|end_header_id|>"));
    text(out, "\n\n");
  }

  private void text(IntStream.Builder out, String text) {
    add(out, tokenizer.encode(text));
  }

  private static void add(IntStream.Builder out, int[] tokens) {
    for (int token : tokens) {
      out.add(token);
    }
  }

  private boolean isToken(String name) {
    return tokenizer.special(name).isPresent();
  }

  private int mark(String name) throws ModelException {
    OptionalInt id = tokenizer.special(name);
    if (id.isEmpty()) {
      throw new ModelException(model + " lacks the token " + name + ", which its chat template needs");
    }
    return id.getAsInt();
  }
}
