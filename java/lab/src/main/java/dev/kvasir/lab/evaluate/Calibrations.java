package dev.kvasir.lab.evaluate;

import dev.kvasir.lab.inspect.Recording;
import dev.kvasir.lab.model.Model;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * What methods learn of a model before they are measured: key scaling, codebooks, plans. They learn from the texts for
 * tuning ({@code *_val.bin}), never from what they are measured on, and each thing is learned once an evaluation.
 */
public final class Calibrations {

  /** Most tokens of each text that are read. */
  private static final int TOKENS = 1024;

  private final Model model;
  private final List<Path> texts;
  private final Map<String, Object> known = new HashMap<>();
  private @Nullable List<Recording> recordings;

  /**
   * Calibrations that have not begun.
   *
   * @param texts what the model reads when a method first asks
   */
  public Calibrations(Model model, List<Path> texts) {
    this.model = model;
    this.texts = List.copyOf(texts);
  }

  /**
   * What {@code work} makes of the model's keys, values and queries on each text.
   *
   * @param name under which the result is kept; the same name must mean the same work
   * @throws IllegalArgumentException if there is no text
   */
  @SuppressWarnings("unchecked")
  public <T> T once(String name, Function<List<Recording>, T> work) {
    if (!known.containsKey(name)) {
      known.put(name, work.apply(recordings()));
    }
    return (T) known.get(name);
  }

  /**
   * What {@code work} makes of the keys before RoPE and the values of several windows of each text.
   *
   * @param name under which the result is kept
   * @param tokens the most to read of each text
   */
  @SuppressWarnings("unchecked")
  public <T> T onceBeforeRope(String name, int tokens, Function<List<Recording>, T> work) {
    if (!known.containsKey(name)) {
      List<Recording> windows = new ArrayList<>();
      for (Path text : require(texts)) {
        int[] all = tokens(text, tokens);
        int length = Math.min(TOKENS, model.config().maxPositions());
        for (int from = 0; from + length <= all.length; from += length) {
          windows.add(Recording.beforeRope(model, Arrays.copyOfRange(all, from, from + length)));
        }
      }
      known.put(name, work.apply(windows));
    }
    return (T) known.get(name);
  }

  private static List<Path> require(List<Path> texts) {
    if (texts.isEmpty()) {
      throw new IllegalArgumentException("there is no text to calibrate on: *_val.bin beside the tests");
    }
    return texts;
  }

  private List<Recording> recordings() {
    if (recordings == null) {
      recordings = require(texts).stream().map(this::read).toList();
    }
    return recordings;
  }

  private Recording read(Path text) {
    return Recording.of(model, tokens(text, Math.min(TOKENS, model.config().maxPositions())));
  }

  private int[] tokens(Path text, int most) {
    try {
      byte[] bytes = Files.readAllBytes(text);
      // However many bytes a token stands for, these are enough and do not take long.
      byte[] beginning = Arrays.copyOf(bytes, Math.min(bytes.length, 16 * most));
      IntStream tokens =
          IntStream.concat(
              Arrays.stream(model.tokenizer().prefix()), Arrays.stream(model.tokenizer().encode(beginning)));
      return tokens.limit(most).toArray();
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  /** The texts for tuning in a folder. */
  public static List<Path> texts(Path folder) throws IOException {
    return Files.isDirectory(folder) ? new ArrayList<>(SampleSets.files(folder, "*_val.bin")) : List.of();
  }
}
