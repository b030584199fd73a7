package dev.kvasir.jlama.trial;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.github.tjake.jlama.model.AbstractModel;
import com.github.tjake.jlama.model.ModelSupport;
import com.github.tjake.jlama.safetensors.DType;
import dev.kvasir.tensor.Safetensors;
import dev.kvasir.tensor.Tensor;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The small model of the lab, which has learned to copy, to retrieve and to compute, as a folder that Jlama loads. */
public final class SmallModel {

  private static final ObjectMapper JSON = new ObjectMapper();
  private static final List<String> TASKS = List.of("retrieval", "copy", "trace");
  private static final int SHORTEST = 136;
  private static final int LONGEST = 800;

  private SmallModel() {}

  /** Where it is: the system property kvasir.smallModel. */
  public static Path source() {
    return Path.of(System.getProperty("kvasir.smallModel"));
  }

  /** Writes the folder: weights as float32, the same settings, and a tokenizer whose tokens are bytes. */
  public static Path write(Path folder) throws IOException {
    Files.createDirectories(folder);
    Files.copy(source().resolve("config.json"), folder.resolve("config.json"));
    Files.writeString(folder.resolve("tokenizer.json"), tokenizer());
    Map<String, Tensor> tensors = new LinkedHashMap<>();
    try (Safetensors weights = Safetensors.open(source().resolve("model.safetensors"))) {
      for (Safetensors.Entry entry : weights.entries().values()) {
        long[] shape = entry.shape().stream().mapToLong(Long::longValue).toArray();
        tensors.put(entry.name(), Tensor.ofFloats(weights.read(entry.name()).toFloats(), shape));
      }
    }
    Safetensors.write(folder.resolve("model.safetensors"), Map.of("format", "pt"), tensors);
    return folder;
  }

  /** Loads it as LangChain4j does: everything in float32. */
  public static AbstractModel load(Path folder) {
    return ModelSupport.loadModel(folder.toFile(), DType.F32, DType.F32);
  }

  /** Prompts of its three tasks, by turns; all fill a page of the cache, so that something is compressed. */
  public static List<String> prompts(int count) throws IOException {
    List<List<String>> tasks = new ArrayList<>();
    for (String task : TASKS) {
      List<String> prompts = new ArrayList<>();
      for (String file : List.of(task + ".jsonl", task + "_val.jsonl")) {
        for (String line : Files.readAllLines(source().resolve("tests").resolve(file))) {
          String prompt = JSON.readTree(line).get("prompt").asText();
          if (prompt.length() >= SHORTEST && prompt.length() <= LONGEST) {
            prompts.add(prompt);
          }
        }
      }
      tasks.add(prompts);
    }
    List<String> chosen = new ArrayList<>();
    for (int i = 0; chosen.size() < count; i++) {
      boolean more = false;
      for (List<String> prompts : tasks) {
        if (i < prompts.size() && chosen.size() < count) {
          chosen.add(prompts.get(i));
          more = true;
        }
      }
      if (!more) {
        throw new IllegalArgumentException("there are " + chosen.size() + " prompts, not " + count);
      }
    }
    return chosen;
  }

  /** What Jlama makes of a prompt: the token for a beginning, and the bytes. */
  public static int[] tokens(String prompt) {
    byte[] bytes = prompt.getBytes(StandardCharsets.UTF_8);
    int[] tokens = new int[bytes.length + 1];
    tokens[0] = 256;
    for (int i = 0; i < bytes.length; i++) {
      tokens[i + 1] = bytes[i] & 0xff;
    }
    return tokens;
  }

  private static String tokenizer() {
    ObjectNode root = JSON.createObjectNode();
    root.put("version", "1.0");
    ArrayNode added = root.putArray("added_tokens");
    String[] names = {"<bos>", "<eos>", "<pad>"};
    for (int i = 0; i < names.length; i++) {
      added.addObject().put("id", 256 + i).put("content", names[i]).put("single_word", false).put("lstrip", false)
          .put("rstrip", false).put("normalized", false).put("special", true);
    }
    root.putNull("normalizer");
    root.putNull("pre_tokenizer");
    root.putNull("decoder");
    ObjectNode model = root.putObject("model");
    model.put("type", "BPE").put("byte_fallback", false);
    ObjectNode vocabulary = model.putObject("vocab");
    for (int b = 0; b < 256; b++) {
      vocabulary.put(Character.toString(b), b); // as Jlama looks characters up; all prompts are ASCII
    }
    model.putArray("merges");
    return root.toString();
  }
}
