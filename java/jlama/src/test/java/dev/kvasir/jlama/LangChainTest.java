package dev.kvasir.jlama;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.jlama.trial.SmallModel;
import dev.kvasir.method.Uniform;
import dev.langchain4j.model.jlama.JlamaChatModel;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class LangChainTest {

  @Test
  void aChatModelOfLangChain4jAnswersFromACompressedCache(@TempDir Path folder) throws IOException {
    Path small = SmallModel.write(folder.resolve("kvasir_small"));
    Files.writeString(small.resolve("tokenizer_config.json"),
        "{\"chat_template\": \"{% for message in messages %}{{ message['content'] }}{% endfor %}\","
            + " \"bos_token\": \"<bos>\", \"eos_token\": \"<eos>\"}");
    Files.createFile(small.resolve(".finished")); // nothing is to be downloaded
    JlamaChatModel chat =
        JlamaChatModel.builder().modelCachePath(folder).modelName("kvasir/small").temperature(0f).maxTokens(400).build();
    String prompt = SmallModel.prompts(2).get(1);
    String expected = chat.chat(prompt);
    try (JlamaCache cache = JlamaCache.attachInside(chat, Uniform.bits(8))) {
      assertEquals(expected, chat.chat(prompt));
      assertTrue(cache.cache().stats().tiles() > 0, "it asked another cache");
      assertEquals(0, cache.cache().stats().bytes());
    }
    assertThrows(IllegalArgumentException.class, () -> JlamaCache.attachInside("no model", Uniform.bits(8)));
  }
}
