package dev.kvasir.runner.text;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.runner.file.ModelException;
import java.nio.file.Files;
import java.nio.file.Path;
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
