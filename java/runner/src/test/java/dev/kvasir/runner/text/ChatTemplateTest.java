package dev.kvasir.runner.text;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.runner.file.ModelException;
import dev.kvasir.runner.text.ChatTemplate.Message;
import dev.kvasir.runner.text.ChatTemplate.Role;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalInt;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Which family a template is taken for: none, where its marks stand otherwise than the family's. */
class ChatTemplateTest {

  @TempDir Path folder;

  /** Whatever mark is asked for is a token. */
  private static final Tokenizer MARKS =
      new NoText() {
        @Override
        public OptionalInt special(String name) {
          return OptionalInt.of(1);
        }
      };

  /** Bytes, and marks in angular brackets, which come back as they are. */
  private static final class Readable extends NoText {
    private final List<String> marks = new ArrayList<>();
    private final int[] prefix;

    Readable(int... prefix) {
      this.prefix = prefix;
    }

    @Override
    public int[] encode(byte[] text) {
      int[] tokens = new int[text.length];
      for (int i = 0; i < tokens.length; i++) {
        tokens[i] = text[i] & 0xFF;
      }
      return tokens;
    }

    @Override
    public int[] prefix() {
      return prefix;
    }

    @Override
    public OptionalInt special(String name) {
      if (!marks.contains(name)) {
        marks.add(name);
      }
      return OptionalInt.of(1000 + marks.indexOf(name));
    }

    String read(int[] tokens) {
      StringBuilder text = new StringBuilder();
      for (int token : tokens) {
        text.append(token < 256 ? String.valueOf((char) token) : token < 1000 ? "#" + token : marks.get(token - 1000));
      }
      return text.toString();
    }
  }

  private static final List<Message> TALK =
      List.of(
          new Message(Role.SYSTEM, "Be brief."),
          new Message(Role.USER, "Hi"),
          new Message(Role.ASSISTANT, "<think>\nhm\n</think>\n\nHey."),
          new Message(Role.USER, "Two?"));

  private static void assertFamily(ChatTemplate.Family family, String template) throws ModelException {
    assertEquals(family, ChatTemplate.of(template, MARKS, "it").family());
  }

  private static void assertRefused(String template) {
    ModelException e = assertThrows(ModelException.class, () -> ChatTemplate.of(template, MARKS, "it"), template);
    assertTrue(e.getMessage().contains("no known family"), e.getMessage());
  }

  @Test
  void marksThatOthersUseOtherwiseAreNotTheFamilys() throws Exception {
    assertFamily(
        ChatTemplate.Family.CHAT_ML,
        "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'}}");
    assertRefused("{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}");
    assertRefused("{{'<|im_start|>User:' + message['content'] + '<end_of_utterance>'}}");
    assertFamily(
        ChatTemplate.Family.ZEPHYR,
        "{{ '<|user|>\n' + message['content'] + eos_token }}{{ '<|assistant|>\n' + message['content'] + eos_token }}");
    assertRefused(
        "{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}"
            + "{{ eos_token }}");
    assertRefused(
        "{{'<|user|>\n' + message['content'] + '\n'}}{{'<|assistant|>\n' + message['content'] + eos_token}}");
  }

  @Test
  void deepSeeksTurnsFollowEachOtherWithoutAWord() throws Exception {
    String turns =
        "{{bos_token}}{{ns.system_prompt}}{{'<｜User｜>' + message['content']}}"
            + "{% set content = content.split('</think>')[-1] %}{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}";
    Readable tokenizer = new Readable(300);
    ChatTemplate template = ChatTemplate.of(turns + "{{'<｜Assistant｜>'}}", tokenizer, "it");
    assertEquals(ChatTemplate.Family.DEEPSEEK, template.family());
    String told = "Be brief.<｜User｜>Hi<｜Assistant｜>\n\nHey.<｜end▁of▁sentence｜><｜User｜>Two?<｜Assistant｜>";
    assertEquals("#300" + told, tokenizer.read(template.encode(TALK, true)));
    assertEquals("<｜User｜>Two?<｜Assistant｜>", tokenizer.read(template.encode(TALK.subList(3, 4), false)));
    assertEquals("<｜end▁of▁sentence｜>", tokenizer.read(new int[] {template.end()}));
    assertThrows(ModelException.class, () -> template.encode(TALK.subList(0, 1), false));
    ChatTemplate thinking = ChatTemplate.of(turns + "{{'<｜Assistant｜><think>\\n'}}", tokenizer, "it");
    assertEquals("#300" + told + "<think>\n", tokenizer.read(thinking.encode(TALK, true)));
    assertRefused(turns + "{{'<｜Assistant｜>'}}{%- if not thinking %}{{'</think>'}}{%- endif %}");
  }

  @Test
  void thoughtsBeginAndAreForgottenAsTheTemplateSays() throws Exception {
    Readable tokenizer = new Readable();
    String both = "{{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning }}";
    String forgets = both + "{%- set content = content.split('</think>')[-1].lstrip('\\n') %}";
    String turns =
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n%s<|im_end|>\n"
            + "<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n%s";
    String[][] cases = {
      {both + "{{- '<|im_start|>assistant\\n' }}", TALK.get(2).text(), ""},
      {forgets + "{{- '<|im_start|>assistant\\n' }}", "Hey.", ""},
      {forgets + "{{- '<|im_start|>assistant\\n<think>\\n' }}", "Hey.", "<think>\n"},
      {forgets + "{{- '<|im_start|>assistant\n<think>\n' }}", "Hey.", "<think>\n"},
    };
    for (String[] each : cases) {
      int[] tokens = ChatTemplate.of(each[0], tokenizer, "it").encode(TALK, true);
      assertEquals(String.format(turns, each[1], each[2]), tokenizer.read(tokens), each[0]);
    }
  }

  /** What Mistral's templates write around messages, and the condition under which the system's is among them. */
  private static String mistral(String condition, String open, String close) {
    return "{%- if messages[0][\"role\"] == \"system\" %}{%- set system_message = messages[0][\"content\"] %}{%- endif %}{{- bos_token }}"
        + "{%- if " + condition + " %}{{- \"" + open + "\" + system_message + \"\\n\\n\" + message[\"content\"] + \"" + close + "\" }}{%- else %}"
        + "{{- \"" + open + "\" + message[\"content\"] + \"" + close + "\" }}{%- endif %}{{- message[\"content\"] + eos_token}}";
  }

  private static final String ANSWERED = "Hi[/INST]<think>\nhm\n</think>\n\nHey.</s>[INST]";

  /** The first version has the system's message in the first turn, the third and Tekken's of it in the last. */
  @Test
  void mistralsSystemStandsWhereItsTemplateHasIt() throws Exception {
    Readable tokenizer = new Readable(300);
    ChatTemplate first = ChatTemplate.of(mistral("loop.first and system_message is defined", " [INST] ", " [/INST]"), tokenizer, "it");
    ChatTemplate last = ChatTemplate.of(mistral("loop.last and system_message is defined", "[INST]", "[/INST]"), tokenizer, "it");
    assertEquals(ChatTemplate.Family.MISTRAL, last.family());
    String told = "#300[INST]Be brief.\n\n" + ANSWERED + "Two?[/INST]";
    assertEquals(told, tokenizer.read(first.encode(TALK, true)));
    String moved = "#300[INST]" + ANSWERED + "Be brief.\n\nTwo?[/INST]";
    assertEquals(moved, tokenizer.read(last.encode(TALK, true)));
    assertTrue(last.systemMoves());
    assertFalse(first.systemMoves());
    List<Message> again = List.of(TALK.get(0), TALK.get(3));
    assertEquals("[INST]Be brief.\n\nTwo?[/INST]", tokenizer.read(last.encode(again, false)));
    assertNoPlace(first, again, false);
    assertNoPlace(last, TALK.subList(0, 3), true); // an answer is the last
    for (ChatTemplate each : List.of(first, last)) {
      assertNoPlace(each, List.of(TALK.get(1), TALK.get(2), TALK.get(0), TALK.get(3)), true);
    }
  }

  @Test
  void mistralsSystemIsMarkedWhereItsTemplateMarksIt() throws Exception {
    Readable tokenizer = new Readable(300);
    String told = "#300[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]" + ANSWERED + "Two?[/INST]";
    String begins = "{{- '[SYSTEM_PROMPT]' + system_message + '[/SYSTEM_PROMPT]' }}{{- '[INST]' + message['content'] + '[/INST]' }}";
    String among = "{% elif message['role'] == 'system' %}" + begins;
    List<Message> late = List.of(TALK.get(1), TALK.get(2), TALK.get(0), TALK.get(3));
    for (String each : List.of(begins, among)) {
      assertEquals(told, tokenizer.read(ChatTemplate.of(each, tokenizer, "it").encode(TALK, true)));
    }
    assertEquals(
        "#300[INST]" + ANSWERED.replace("[INST]", "[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]") + "Two?[/INST]",
        tokenizer.read(ChatTemplate.of(among, tokenizer, "it").encode(late, true)));
    assertNoPlace(ChatTemplate.of(begins, tokenizer, "it"), late, true);
    Tokenizer unmarked =
        new NoText() {
          @Override
          public OptionalInt special(String name) {
            return name.contains("SYSTEM") ? OptionalInt.empty() : OptionalInt.of(1);
          }
        };
    ChatTemplate lost = ChatTemplate.of(begins, unmarked, "it");
    ModelException e = assertThrows(ModelException.class, () -> lost.encode(TALK, true));
    assertTrue(e.getMessage().contains("[SYSTEM_PROMPT]"), e.getMessage());
  }

  /** The first files of Mistral's know no system, and raise an exception; others may have it anywhere. */
  @Test
  void aSystemThatMistralsTemplateDoesNotKnowIsRefused() throws Exception {
    Readable tokenizer = new Readable(300);
    for (String unknown :
        List.of(
            "{{ bos_token }}{{ '[INST] ' + message['content'] + ' [/INST]' }}{{ message['content'] + eos_token}}",
            mistral("loop.index0 == 0 and system_message is defined", "[INST]", "[/INST]"),
            mistral("loop.last and system_message is defined", "[SYSTEM_PROMPT][INST]", "[/INST]"))) {
      ChatTemplate template = ChatTemplate.of(unknown, tokenizer, "it");
      assertNoPlace(template, TALK, true);
      assertEquals("#300[INST]" + ANSWERED + "Two?[/INST]", tokenizer.read(template.encode(TALK.subList(1, 4), true)));
    }
  }

  private static void assertNoPlace(ChatTemplate template, List<Message> messages, boolean first) {
    ModelException e = assertThrows(ModelException.class, () -> template.encode(messages, first));
    assertTrue(e.getMessage().contains("no place for a system's message"), e.getMessage());
  }

  /** Early files of Llama 3 have it in the template alone; Qwen's name one that no text begins with. */
  @Test
  void aTextBeginsAsItsTokenizerOrItsTemplateSays() throws Exception {
    String[][] cases = {
      {"{{ bos_token }}{{ '<|im_start|>' }}", "", "#301"},
      {"{{ bos_token }}{{ '<|im_start|>' }}", "300", "#300"},
      {"{{ '<|im_start|>' }}", "", ""},
      {"{{ '<|im_start|>' }}", "300", "#300"},
    };
    for (String[] each : cases) {
      Readable tokenizer = each[1].isEmpty() ? new Readable() : new Readable(Integer.parseInt(each[1]));
      ChatTemplate template = ChatTemplate.of(each[0], tokenizer, OptionalInt.of(301), "it");
      String expected = each[2] + "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
      assertEquals(expected, tokenizer.read(template.encode(TALK.subList(1, 2), true)), each[0]);
      assertEquals("\n<|im_start|>assistant\n", tokenizer.read(template.encode(List.of(), false)));
    }
    Path file = folder.resolve("tokenizer_config.json");
    Readable tokenizer = new Readable();
    assertTrue(Tokenizers.begin(folder, tokenizer).isEmpty());
    for (String bos : List.of("\"<s>\"", "{\"content\": \"<s>\"}")) {
      Files.writeString(file, "{\"bos_token\": " + bos + "}");
      assertEquals(tokenizer.special("<s>"), Tokenizers.begin(folder, tokenizer));
    }
    Files.writeString(file, "{\"bos_token\": null}");
    assertTrue(Tokenizers.begin(folder, tokenizer).isEmpty());
    Files.writeString(file, "{\"bos_token\": 1}");
    assertThrows(ModelException.class, () -> Tokenizers.begin(folder, tokenizer));
  }

  @Test
  void ofNamedTemplatesTheDefaultIsTaken() throws Exception {
    Path file = folder.resolve("tokenizer_config.json");
    Files.writeString(
        file,
        "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"a\"},"
            + " {\"name\": \"default\", \"template\": \"b\"}]}");
    assertEquals("b", Tokenizers.template(folder));
    Files.writeString(file, "{\"chat_template\": \"c\"}");
    assertEquals("c", Tokenizers.template(folder));
  }
}
