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
    /** {@code [INST] ... [/INST]}, with {@code [SYSTEM_PROMPT]} where that is a token. */
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

  private final Family family;
  private final Tokenizer tokenizer;
  private final String model;
  /** What stands before a conversation. */
  private final int[] begin;
  /** What an answer begins with, as the model is told. */
  private final String opening;
  /** Whether answers of former turns are told without their thoughts. */
  private final boolean forgetsThoughts;

  private ChatTemplate(Family family, String template, Tokenizer tokenizer, OptionalInt bos, String model) {
    this.family = family;
    this.tokenizer = tokenizer;
    this.model = model;
    int[] prefix = tokenizer.prefix();
    this.begin = prefix.length == 0 && template.contains("bos_token") ? bos.stream().toArray() : prefix;
    this.opening = THOUGHT.matcher(template).find() ? "<think>\n" : "";
    this.forgetsThoughts = template.contains("split('</think>')[-1]");
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
   * @param messages what is new
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
        case LLAMA_2, MISTRAL -> system = instruct(out, message, system, first && i == 0);
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
        if (family == Family.MISTRAL && isToken("[SYSTEM_PROMPT]") && isToken("[/SYSTEM_PROMPT]")) {
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
