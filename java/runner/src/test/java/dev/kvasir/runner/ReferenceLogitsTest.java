package dev.kvasir.runner;

import static dev.kvasir.Testing.difference;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.LabModel;
import dev.kvasir.runner.file.Json;
import dev.kvasir.method.HalfPrecision;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;

/** A trained model against logits that another implementation computed; skipped where the model is missing. */
class ReferenceLogitsTest {

  @Test
  void finalLogitsAgree() throws Exception {
    Path folder = LabModel.folder();
    Model model = Model.load(folder);
    assertEquals("qwen2", model.config().type());
    Decoder decoder = new Decoder(model);
    for (Json prompt : Json.read(folder.resolve("reference_logits.json")).get("prompts").list()) {
      int[] tokens = prompt.get("input_ids").integers();
      int[] prefix = model.tokenizer().prefix();
      int[] encoded = model.tokenizer().encode(prompt.get("prompt").text());
      assertEquals(tokens.length, prefix.length + encoded.length);
      assertEquals(tokens[0], prefix[0]);
      for (int i = 0; i < encoded.length; i++) {
        assertEquals(tokens[i + 1], encoded[i]);
      }
      assertArrayEquals(prompt.get("prompt").text().getBytes("UTF-8"), model.tokenizer().decode(tokens));
      float[] expected = prompt.get("logits").floats();
      try (KvCache cache = KvCache.builder(model.geometry()).method(new HalfPrecision()).build();
          KvSequence whole = cache.newSequence();
          KvSequence single = cache.newSequence()) {
        double difference = difference(expected, decoder.decode(whole, tokens));
        float[] last = {};
        for (int token : tokens) {
          last = decoder.decode(single, token);
        }
        double stepwise = difference(expected, last);
        System.out.printf("reference logits: %.2e relative at once, %.2e token by token%n", difference, stepwise);
        // The reference keeps keys and values in float32; ours are float16, 2^-11 relative.
        assertTrue(difference < 1e-2 && stepwise < 1e-2);
      }
    }
  }
}
