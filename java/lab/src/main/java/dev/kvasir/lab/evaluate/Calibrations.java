package dev.kvasir.lab.evaluate;

import dev.kvasir.Precision;
import dev.kvasir.calibrate.CalibrationTensors;
import dev.kvasir.calibrate.KeyScaling;
import dev.kvasir.calibrate.Profile;
import dev.kvasir.calibrate.Sensitivities;
import dev.kvasir.lab.inspect.Recording;
import dev.kvasir.lab.sample.Sample;
import dev.kvasir.lab.sample.SampleSets;
import dev.kvasir.runner.Decoder;
import dev.kvasir.runner.Model;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * What methods learn of a model before they are measured: key scaling, codebooks, plans. They learn from what is there for
 * tuning, texts ({@code *_val.bin}) and tasks ({@code *_val.jsonl}), never from what they are measured on, and each thing
 * is learned once an evaluation.
 */
public final class Calibrations {

  /** Recorded keys and values with gradients, beside a model: from them come the sensitivities of its layers. */
  private static final String TENSORS = "calib.safetensors";

  /** Ends the name of a file with what was learned before. */
  private static final String PROFILE_ENDING = ".profile";

  /** The profile with what PM-KVQ learns: key scaling, and what layers lose. */
  public static final String PM_KVQ = "pm-kvq";

  /** Newest tokens of a text whose attention judges a scaling. */
  private static final int SCALING_QUERIES = 64;

  /** Most tokens of each text that are read for key scaling. */
  private static final int TOKENS = 1024;

  /**
   * How much there is to learn from, and how long it may take.
   *
   * @param fileTokens most tokens of each file that are read for codebooks
   * @param rows of those, how many are kept
   * @param keySteps steps of training a codebook of keys
   * @param textTokens most tokens of each text that are read for moments
   */
  private record Effort(int fileTokens, int rows, int keySteps, int textTokens) {

    /** After 25 steps codebooks of keys hardly get better. */
    static final Effort FULL = new Effort(16384, 16384, 25, 8192);

    /** For a sample: a text of 2048 tokens from each file. */
    static final Effort SAMPLE = new Effort(2048, 4096, 4, 2048);
  }

  /** Sequences that are read for codebooks, and windows that are read for moments, are no longer. */
  private static final int SEQUENCE_TOKENS = 2048;

  private static final int WINDOW_TOKENS = 4096;

  private static final int PREDICTED_TOKENS = 513;
  private static final int MORE_PREDICTED_TOKENS = 2049;

  private final Model model;
  private final List<Path> texts = new ArrayList<>();
  private final List<Path> tasks = new ArrayList<>();
  private final Map<String, Object> known = new HashMap<>();
  private @Nullable Path folder;
  private String backend = "cpu";
  private Effort effort = Effort.FULL;
  private @Nullable Integer keySteps;

  /** What was learned, and how many seconds that took without what else was learned for it. */
  private final Map<String, Double> seconds = new LinkedHashMap<>();

  private double secondsWithin;

  /**
   * Calibrations that have not begun.
   *
   * @param files what the model reads when a method first asks: texts, and tasks in files that end in .jsonl
   */
  public Calibrations(Model model, List<Path> files) {
    this.model = model;
    for (Path file : files) {
      (file.toString().endsWith(SampleSets.TASK_ENDING) ? tasks : texts).add(file);
    }
  }

  /**
   * Looks for what was learned or recorded before in a folder, too: {@code calib.safetensors} with gradients, and
   * profiles.
   *
   * @return this
   */
  public Calibrations from(Path folder) {
    this.folder = folder;
    return this;
  }

  /**
   * Lets the model run on a backend, as {@link dev.kvasir.runner.Decoder} knows them.
   *
   * @return this
   */
  public Calibrations on(String backend) {
    this.backend = backend;
    return this;
  }

  /**
   * Learns in minutes, of a model of a billion parameters, too: from a text of each file, codebooks in few steps, bases with
   * the same bits for all layers. What takes longer however little it reads comes from profiles or not at all: encoders of
   * values, and what coding each layer costs.
   *
   * @return this
   */
  public Calibrations quick(boolean quick) {
    effort = quick ? Effort.SAMPLE : Effort.FULL;
    return this;
  }

  boolean quick() {
    return effort == Effort.SAMPLE;
  }

  /** Whether there is time for what takes long to learn, or it was learned before. */
  boolean canLearnForLong(String profile) {
    return !quick() || find(profile + PROFILE_ENDING).isPresent();
  }

  /** What was learned so far, in order, and the seconds that each took. */
  public Map<String, Double> seconds() {
    return Collections.unmodifiableMap(seconds);
  }

  /**
   * Trains codebooks of keys for so many steps; the paper takes 100.
   *
   * @return this
   */
  public Calibrations keySteps(int steps) {
    this.keySteps = steps;
    return this;
  }

  int keySteps() {
    return keySteps == null ? effort.keySteps() : keySteps;
  }

  /** What the model runs on: the CPU unless something else was said. */
  String backend() {
    return backend;
  }

  /** Whether tokens are cheap: a GPU reads in seconds what takes minutes on a CPU. */
  boolean thorough() {
    return backend.equals("cuda");
  }

  /** The model. */
  public Model model() {
    return model;
  }

  /**
   * What {@code work} makes of the model's keys, values and queries on each text.
   *
   * @param name under which the result is kept; the same name must mean the same work
   * @throws IllegalArgumentException if there is no text
   */
  public <T> T once(String name, Function<List<Recording>, T> work) {
    return timed(name, () -> work.apply(recordings()));
  }

  /**
   * What {@code work} makes of keys before RoPE and values of tokens from all texts and tasks.
   *
   * @param name under which the result is kept
   * @throws IllegalArgumentException if there is neither
   */
  public <T> T onceFromRows(String name, Function<TrainingRows, T> work) {
    return timed(name, () -> work.apply(timed("reading for codebooks", this::rows)));
  }

  /**
   * Texts as methods learn from them.
   *
   * @param read long ones
   * @param predicted the beginning of each
   * @param heldOut what follows there, for judging what was learned from predictions; the beginnings where texts end with them
   */
  public record Texts(List<int[]> read, List<Sample> predicted, List<Sample> heldOut) {}

  /**
   * What {@code work} makes of the texts.
   *
   * @param name under which the result is kept
   * @throws IllegalArgumentException if there is no text
   */
  public <T> T onceFromTexts(String name, Function<Texts, T> work) {
    return timed(
        name,
        () -> {
          require(texts, "text to calibrate on: *_val.bin");
          List<int[]> read = new ArrayList<>();
          List<Sample> predicted = new ArrayList<>();
          List<Sample> heldOut = new ArrayList<>();
          int scoredFrom = Math.max(0, model.tokenizer().prefix().length - 1);
          for (Path text : texts) {
            read.addAll(windows(text, effort.textTokens(), WINDOW_TOKENS));
            int predict = thorough() ? MORE_PREDICTED_TOKENS : PREDICTED_TOKENS;
            List<int[]> windows = windows(text, 2 * predict, predict);
            if (windows.isEmpty()) {
              continue;
            }
            boolean more = windows.size() > 1 && windows.get(1).length >= windows.get(0).length / 2;
            String label = text.getFileName().toString();
            predicted.add(new Sample(label, false, windows.get(0), scoredFrom));
            heldOut.add(new Sample(label, false, windows.get(more ? 1 : 0), scoredFrom));
          }
          require(predicted, "token in the texts to calibrate on, *_val.bin,");
          return work.apply(new Texts(read, predicted, heldOut));
        });
  }

  /** The profile of a name that was made before, if there is one. */
  public Optional<Profile> profile(String name) {
    return find(name + PROFILE_ENDING)
        .map(
            file ->
                remember(
                    "profile " + name,
                    () -> {
                      try {
                        return Profile.load(file, model.geometry());
                      } catch (IOException e) {
                        throw new UncheckedIOException(e);
                      }
                    }));
  }

  /** What keys are divided by: from the profile of PM-KVQ where there is one, else found now. */
  public KeyScaling keyScaling() {
    return remember(
        "key scaling",
        () ->
            profile(PM_KVQ)
                .flatMap(Profile::keyScaling)
                .orElseGet(() -> once("scaling of keys", this::keyScaling)));
  }

  private KeyScaling keyScaling(List<Recording> recordings) {
    KeyScaling.Options options = KeyScaling.Options.of(model.config().rope());
    return KeyScaling.calibrate(
        model.geometry(),
        options,
        layer -> recordings.stream().map(recording -> recording.sample(layer).lastQueries(SCALING_QUERIES)).toList());
  }

  /** What coding each layer costs the model's predictions: from the profile of PM-KVQ where there is one, else measured. */
  public Sensitivities losses() {
    return remember(
        "losses",
        () ->
            profile(PM_KVQ)
                .flatMap(Profile::sensitivities)
                .orElseGet(() -> LayerLosses.measure(this, line -> {})));
  }

  /** Whether {@link #keyScaling} has something to go by. */
  boolean hasKeyScaling() {
    return !texts.isEmpty() || profile(PM_KVQ).flatMap(Profile::keyScaling).isPresent();
  }

  /** Whether {@link #losses} has something to go by. */
  boolean hasLosses() {
    return !texts.isEmpty() && !quick() || profile(PM_KVQ).flatMap(Profile::sensitivities).isPresent();
  }

  /** How much the model's loss feels an error in each layer, if gradients were recorded. */
  public Optional<Sensitivities> sensitivities() {
    return find(TENSORS).map(file -> remember("sensitivities", () -> sensitivities(file)));
  }

  private Sensitivities sensitivities(Path file) {
    try (CalibrationTensors tensors =
        CalibrationTensors.open(model.geometry(), CalibrationTensors.Layout.HEADS_FIRST, file)) {
      return Sensitivities.accumulator(model.geometry()).add(tensors).result();
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  private Optional<Path> find(String name) {
    return Optional.ofNullable(folder).map(in -> in.resolve(name)).filter(Files::isRegularFile);
  }

  /** What {@code work} makes, once for each name, and how long that took. */
  private <T> T timed(String name, Supplier<T> work) {
    return remember(
        name,
        () -> {
          double outer = secondsWithin;
          secondsWithin = 0;
          long start = System.nanoTime();
          T made = work.get();
          double all = (System.nanoTime() - start) / 1e9;
          seconds.put(name, all - secondsWithin);
          secondsWithin = outer + all;
          return made;
        });
  }

  /** What {@code work} makes, once for each name. */
  @SuppressWarnings("unchecked")
  <T> T remember(String name, Supplier<T> work) {
    if (!known.containsKey(name)) {
      known.put(name, work.get());
    }
    return (T) known.get(name);
  }

  private List<Recording> recordings() {
    require(texts, "text to calibrate on: *_val.bin");
    int most = Math.min(TOKENS, model.config().maxPositions());
    return remember(
        "recordings",
        () -> {
          try (Decoder decoder = decoder()) {
            return texts.stream().map(text -> Recording.of(decoder, tokens(text, most))).toList();
          }
        });
  }

  private TrainingRows rows() {
    List<int[]> sequences = new ArrayList<>();
    for (Path text : texts) {
      sequences.addAll(windows(text, effort.fileTokens(), SEQUENCE_TOKENS));
    }
    for (Path task : tasks) {
      int read = 0;
      for (Sample sample : samples(task)) {
        if (read < effort.fileTokens()) {
          sequences.add(sample.tokens());
          read += sample.tokens().length;
        }
      }
    }
    require(sequences, "text or task to train codebooks on: *_val.bin or *_val.jsonl");
    try (Decoder decoder = decoder()) {
      return TrainingRows.read(decoder, sequences, effort.rows());
    }
  }

  private Decoder decoder() {
    return new Decoder(model, backend, Precision.EXACT);
  }

  /** The first tokens of a text, cut into windows of at most so many, each with the model's prefix. */
  private List<int[]> windows(Path text, int most, int window) {
    List<int[]> windows = new ArrayList<>();
    int longest = Math.min(window, model.config().maxPositions());
    int[] prefix = model.tokenizer().prefix();
    int[] all = tokens(text, most);
    for (int from = prefix.length; from < all.length; from += longest - prefix.length) {
      int to = Math.min(all.length, from + longest - prefix.length);
      windows.add(IntStream.concat(Arrays.stream(prefix), Arrays.stream(all, from, to)).toArray());
    }
    return windows;
  }

  private static void require(List<?> found, String what) {
    if (found.isEmpty()) {
      throw new IllegalArgumentException("there is no " + what + " beside the tests");
    }
  }

  private List<Sample> samples(Path task) {
    try {
      return SampleSets.tasks(task, model.tokenizer(), Integer.MAX_VALUE, model.config().maxPositions());
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  private int[] tokens(Path text, int most) {
    try {
      byte[] bytes = Files.readAllBytes(text);
      // However many bytes a token stands for, these are enough and do not take long.
      byte[] beginning = Arrays.copyOf(bytes, (int) Math.min(bytes.length, 16L * most));
      IntStream tokens =
          IntStream.concat(
              Arrays.stream(model.tokenizer().prefix()), Arrays.stream(model.tokenizer().encode(beginning)));
      return tokens.limit(most).toArray();
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  /** The texts and tasks for tuning in a folder. */
  public static List<Path> files(Path folder) throws IOException {
    List<Path> files = new ArrayList<>();
    if (Files.isDirectory(folder)) {
      files.addAll(SampleSets.files(folder, "*" + SampleSets.TUNING_TEXT_ENDING));
      files.addAll(SampleSets.files(folder, "*" + SampleSets.TUNING_TASK_ENDING));
    }
    return files;
  }
}
