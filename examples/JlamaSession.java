import com.github.tjake.jlama.model.AbstractModel;
import com.github.tjake.jlama.model.ModelSupport;
import com.github.tjake.jlama.safetensors.DType;
import com.github.tjake.jlama.safetensors.prompt.PromptContext;
import dev.kvasir.jlama.JlamaCache;
import dev.kvasir.method.Uniform;
import java.io.File;
import java.util.UUID;

/**
 * A model of Jlama with a compressed cache, whose session goes on in a second call. Needs JDK 21 or newer, and a folder with a
 * model: {@code java --add-modules jdk.incubator.vector -cp ... JlamaSession.java FOLDER}.
 */
public final class JlamaSession {

  public static void main(String[] args) {
    UUID session = UUID.randomUUID();
    try (AbstractModel model = ModelSupport.loadModel(new File(args[0]), DType.F32, DType.F32);
        JlamaCache cache = JlamaCache.attach(model, Uniform.bits(8))) {
      generate(model, session, "set ka=57 mo=08 te=91\nrun su:ka+mo;ri:su-te;\n", 16);
      long first = cache.sequence(session).length();
      String answer = generate(model, session, "repeat x81Qa0\n> ", (int) first + 8); // counts from the session's beginning
      long second = cache.sequence(session).length();
      System.out.printf(
          "JlamaSession: %d tokens after one call, %d after two, %d KB; it says \"%s\"%n",
          first, second, cache.cache().stats().bytes() / 1000, answer.strip());
      if (second <= first) {
        throw new AssertionError("the session did not go on");
      }
    }
  }

  private static String generate(AbstractModel model, UUID session, String prompt, int tokens) {
    int most = prompt.length() + 1 + tokens;
    return model.generate(session, PromptContext.of(prompt), 0f, most, (text, time) -> {}).responseText;
  }
}
