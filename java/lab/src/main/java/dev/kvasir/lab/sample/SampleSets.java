package dev.kvasir.lab.sample;

import dev.kvasir.runner.file.Json;
import dev.kvasir.runner.file.ModelException;
import dev.kvasir.runner.text.Tokenizer;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryIteratorException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.stream.IntStream;

/**
 * Reads what a model is tested on: {@code *_test.bin}, held-out text, and {@code *.jsonl}, tasks with {@code prompt}
 * and {@code answer}. What ends in {@code _val.bin} or {@code _val.jsonl} is for tuning: calibrations read it, no
 * score does.
 */
public final class SampleSets {

  /** Bytes of a window of text, or fewer where the model takes no more tokens. */
  public static final int WINDOW_BYTES = 4096;

  private static final String TEXT_ENDING = "_test.bin";

  /** Ends the names of tasks. */
  public static final String TASK_ENDING = ".jsonl";

  /** Ends the names of texts for tuning. */
  public static final String TUNING_TEXT_ENDING = "_val.bin";

  /** Ends the names of tasks for tuning. */
  public static final String TUNING_TASK_ENDING = "_val.jsonl";

  private SampleSets() {}

  /**
   * The samples of a folder, by set: texts first, then tasks.
   *
   * @param windows most windows of each text, 0 for none
   * @param window tokens of a window, the model's prefix among them: the text is tokenised as a whole and cut there; 0
   *     for windows of {@link #WINDOW_BYTES} bytes that are tokenised one by one
   * @param samples most instances of each task, 0 for none
   * @param context most tokens that the model was made for; beyond it a score says nothing of the cache
   * @throws ModelException if there are none although some are wanted, or an instance does not fit the context
   */
  public static Map<String, List<Sample>> read(
      Path folder, Tokenizer tokenizer, int windows, int window, int samples, int context) throws IOException {
    Map<String, List<Sample>> sets = new LinkedHashMap<>();
    if (Files.isDirectory(folder)) {
      for (Path file : files(folder, "*" + TEXT_ENDING)) {
        put(
            sets,
            name(file, TEXT_ENDING),
            window == 0
                ? windows(file, tokenizer, windows, context)
                : tokenWindows(file, tokenizer, windows, Math.min(window, context)));
      }
      for (Path file : files(folder, "*" + TASK_ENDING)) {
        if (file.toString().endsWith(TUNING_TASK_ENDING)) {
          continue;
        }
        put(sets, name(file, TASK_ENDING), tasks(file, tokenizer, samples, context));
      }
    }
    if (sets.isEmpty() && windows + samples > 0) {
      String least = window == 0 ? Math.min(WINDOW_BYTES, context) + " bytes" : Math.min(window, context) + " tokens";
      throw new ModelException(
          folder + " holds neither texts (*" + TEXT_ENDING + ") of " + least + " or more nor tasks (*" + TASK_ENDING + ")");
    }
    return sets;
  }

  /**
   * The same sets with texts of which the last tokens alone are scored.
   *
   * @param scored how many; what comes before is a prompt
   */
  public static Map<String, List<Sample>> lastTokens(Map<String, List<Sample>> sets, int scored) {
    Map<String, List<Sample>> cut = new LinkedHashMap<>();
    sets.forEach((name, samples) -> cut.put(name, samples.stream().map(sample -> lastTokens(sample, scored)).toList()));
    return cut;
  }

  private static Sample lastTokens(Sample sample, int scored) {
    int from = Math.max(sample.scoredFrom(), sample.length() - scored);
    return sample.task() ? sample : new Sample(sample.set(), false, sample.tokens(), from);
  }

  /**
   * Pass keys hidden in the texts of a folder.
   *
   * @param count how many to ask for
   * @throws ModelException if there is no text, or too little of it
   */
  public static List<Sample> passkeys(Path folder, Tokenizer tokenizer, int count, int context) throws IOException {
    return Passkeys.read(texts(folder), tokenizer, count, context);
  }

  /**
   * The first text of a folder, with the pass keys that are hidden in it.
   *
   * @throws ModelException if there is no text, or too little of it
   */
  public static HiddenKeys hiddenKeys(Path folder, Tokenizer tokenizer, int context) throws IOException {
    return Passkeys.first(texts(folder).get(0), tokenizer, context);
  }

  private static List<byte[]> texts(Path folder) throws IOException {
    List<byte[]> texts = new ArrayList<>();
    for (Path file : files(folder, "*" + TEXT_ENDING)) {
      texts.add(Files.readAllBytes(file));
    }
    if (texts.isEmpty()) {
      throw new ModelException(folder + " holds no text (*" + TEXT_ENDING + ") to hide pass keys in");
    }
    return texts;
  }

  /** The sample of a text that begins with what the model expects. */
  public static Sample text(String set, byte[] bytes, Tokenizer tokenizer) {
    int[] prefix = tokenizer.prefix();
    // Without a prefix nothing predicts the first token.
    return new Sample(set, false, joined(prefix, tokenizer.encode(bytes)), Math.max(0, prefix.length - 1));
  }

  /** The sample of a prompt and the answer that it should get. */
  public static Sample task(String set, String prompt, String answer, Tokenizer tokenizer) {
    int[] asked = joined(tokenizer.prefix(), tokenizer.encode(prompt));
    return new Sample(set, true, joined(asked, tokenizer.encode(answer)), asked.length - 1);
  }

  private static List<Sample> windows(Path file, Tokenizer tokenizer, int most, int context) throws IOException {
    // No tokenizer of ours makes more tokens than there are bytes.
    int size = Math.min(WINDOW_BYTES, context);
    byte[] all = Files.readAllBytes(file);
    List<Sample> samples = new ArrayList<>();
    for (int at = 0; samples.size() < most && at + size <= all.length; at += size) {
      samples.add(text(name(file, TEXT_ENDING), Arrays.copyOfRange(all, at, at + size), tokenizer));
    }
    return samples;
  }

  private static List<Sample> tokenWindows(Path file, Tokenizer tokenizer, int most, int window) throws IOException {
    int[] prefix = tokenizer.prefix();
    int own = window - prefix.length;
    if (own < 2) {
      throw new ModelException("windows of " + window + " tokens hold no text");
    }
    // However many bytes a token stands for, these are enough and do not take long.
    byte[] bytes;
    try (InputStream in = Files.newInputStream(file)) {
      bytes = in.readNBytes((int) Math.min(Integer.MAX_VALUE - 8, 16L * own * most + 64));
    }
    int[] all = tokenizer.encode(bytes);
    List<Sample> samples = new ArrayList<>();
    for (int at = 0; samples.size() < most && at + own <= all.length; at += own) {
      int[] tokens = joined(prefix, Arrays.copyOfRange(all, at, at + own));
      samples.add(new Sample(name(file, TEXT_ENDING), false, tokens, Math.max(0, prefix.length - 1)));
    }
    return samples;
  }

  /** The instances of a task. */
  public static List<Sample> tasks(Path file, Tokenizer tokenizer, int most, int context) throws IOException {
    List<Sample> samples = new ArrayList<>();
    try {
      for (String line : Files.readAllLines(file, StandardCharsets.UTF_8)) {
        if (samples.size() < most && !line.isBlank()) {
          Json json = Json.parse(line, file + ", instance " + samples.size());
          String answer = json.get("answer").text();
          if (answer.isEmpty() || json.get("prompt").text().isEmpty()) {
            throw new ModelException(file + ", instance " + samples.size() + " has an empty prompt or answer");
          }
          Sample sample = task(name(file, TASK_ENDING), json.get("prompt").text(), answer, tokenizer);
          if (sample.length() > context) {
            String length = sample.length() + " tokens; the model takes " + context;
            throw new ModelException(file + ", instance " + samples.size() + " has " + length);
          }
          samples.add(sample);
        }
      }
    } catch (CharacterCodingException e) {
      throw new ModelException(file + " is not in UTF-8", e);
    } catch (Json.JsonException e) {
      throw new ModelException(e.getMessage(), e);
    }
    return samples;
  }

  private static void put(Map<String, List<Sample>> sets, String name, List<Sample> samples) throws ModelException {
    if (!samples.isEmpty() && sets.put(name, samples) != null) {
      throw new ModelException("a text and a task have the name " + name + ": figures are told apart by names");
    }
  }

  /** The files of a folder that a pattern fits, by name. */
  public static Collection<Path> files(Path folder, String glob) throws IOException {
    TreeSet<Path> found = new TreeSet<>();
    try (DirectoryStream<Path> stream = Files.newDirectoryStream(folder, glob)) {
      for (Path file : stream) {
        if (!Files.isDirectory(file)) {
          found.add(file);
        }
      }
    } catch (DirectoryIteratorException e) {
      throw e.getCause();
    }
    return found;
  }

  private static String name(Path file, String ending) {
    String name = file.getFileName().toString();
    return name.substring(0, name.length() - ending.length());
  }

  private static int[] joined(int[] first, int[] second) {
    return IntStream.concat(Arrays.stream(first), Arrays.stream(second)).toArray();
  }
}
