package dev.kvasir.calibrate;

import dev.kvasir.KvGeometry;
import dev.kvasir.tensor.Safetensors;
import dev.kvasir.tensor.SafetensorsException;
import dev.kvasir.tensor.Tensor;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Tensors that a model produced for one text, in safetensors files: {@code layers.<i>.k} and {@code .v} (what the cache
 * would store, keys after RoPE), {@code .k_pre} (keys before RoPE), {@code .q} (queries after RoPE), {@code .q_pre},
 * {@code .grad_k} and {@code .grad_v} (derivatives of the loss by {@code .k} and {@code .v}). What a calibration does
 * not use may be missing.
 */
public final class CalibrationTensors implements AutoCloseable {

  /** The order of dimensions in the files. */
  public enum Layout {
    /** {@code [heads, tokens, headDim]}: how attention computes. */
    HEADS_FIRST,
    /** {@code [tokens, heads, headDim]}: how projections return them, and how Kvasir takes them. */
    TOKENS_FIRST
  }

  private final KvGeometry geometry;
  private final Layout layout;
  private final List<Safetensors> files;
  private final Map<String, Safetensors> fileOfTensor;
  private final int tokens;

  private CalibrationTensors(KvGeometry geometry, Layout layout, List<Safetensors> files) throws IOException {
    this.geometry = geometry;
    this.layout = layout;
    this.files = files;
    this.fileOfTensor = new LinkedHashMap<>();
    for (Safetensors file : files) {
      for (String name : file.entries().keySet()) {
        if (fileOfTensor.put(name, file) != null && name.startsWith("layers.")) {
          throw new SafetensorsException(file.path(), "\"" + name + "\" is in another of the files too", null);
        }
      }
    }
    this.tokens = countTokens();
  }

  /**
   * Opens files.
   *
   * @param geometry the model
   * @param layout the order of dimensions
   * @param paths the files; each tensor must be in one of them alone
   * @return the open files
   * @throws SafetensorsException if a file is invalid or does not fit the geometry
   * @throws IOException if a file cannot be read
   */
  public static CalibrationTensors open(KvGeometry geometry, Layout layout, Path... paths) throws IOException {
    List<Safetensors> files = new ArrayList<>();
    try {
      for (Path path : paths) {
        files.add(Safetensors.open(path));
      }
      return new CalibrationTensors(geometry, layout, files);
    } catch (IOException | RuntimeException | Error e) {
      for (Safetensors file : files) {
        file.close();
      }
      throw e;
    }
  }

  /**
   * Tokens of the text.
   *
   * @return 1 or more
   */
  public int tokens() {
    return tokens;
  }

  /**
   * Keys after RoPE.
   *
   * @param layer 0 .. layers-1
   * @return {@code [tokens][kvHeads][headDim]}
   * @throws IOException if they are missing, do not fit or cannot be read
   */
  public float[] keys(int layer) throws IOException {
    return read(layer, "k", geometry.kvHeads(layer));
  }

  /**
   * Values.
   *
   * @param layer 0 .. layers-1
   * @return {@code [tokens][kvHeads][headDim]}
   * @throws IOException if they are missing, do not fit or cannot be read
   */
  public float[] values(int layer) throws IOException {
    return read(layer, "v", geometry.kvHeads(layer));
  }

  /**
   * Derivatives of the loss by the keys after RoPE.
   *
   * @param layer 0 .. layers-1
   * @return {@code [tokens][kvHeads][headDim]}
   * @throws IOException if they are missing, do not fit or cannot be read
   */
  public float[] keyGradients(int layer) throws IOException {
    return read(layer, "grad_k", geometry.kvHeads(layer));
  }

  /**
   * Derivatives of the loss by the values.
   *
   * @param layer 0 .. layers-1
   * @return {@code [tokens][kvHeads][headDim]}
   * @throws IOException if they are missing, do not fit or cannot be read
   */
  public float[] valueGradients(int layer) throws IOException {
    return read(layer, "grad_v", geometry.kvHeads(layer));
  }

  /**
   * Keys, values and queries of a layer; keys and queries from before RoPE where the files have both, else from after.
   * What the files have from one side alone is taken from there.
   *
   * @param layer 0 .. layers-1
   * @return the sample
   * @throws IOException if something is missing, does not fit or cannot be read
   */
  public AttentionSample sample(int layer) throws IOException {
    boolean both = has(layer, "k_pre") && has(layer, "q_pre");
    boolean keysRotated = rotated(layer, "k", both);
    boolean queriesRotated = rotated(layer, "q", both);
    return new AttentionSample(
        tokens,
        read(layer, keysRotated ? "k" : "k_pre", geometry.kvHeads(layer)),
        keysRotated,
        values(layer),
        tokens,
        read(layer, queriesRotated ? "q" : "q_pre", geometry.queryHeads(layer)),
        queriesRotated);
  }

  /** Whether to take a tensor from after RoPE; also where it is in no file, so that its plain name is the one missed. */
  private boolean rotated(int layer, String name, boolean both) {
    return !both && (has(layer, name) || !has(layer, name + "_pre"));
  }

  /** Closes the files. */
  @Override
  public void close() throws IOException {
    for (Safetensors file : files) {
      file.close();
    }
  }

  void requireGeometry(KvGeometry expected) {
    if (!geometry.equals(expected)) {
      throw new IllegalArgumentException("tensors of " + geometry + " for " + expected);
    }
  }

  private boolean has(int layer, String name) {
    return fileOfTensor.containsKey("layers." + layer + "." + name);
  }

  /** All tensors have as many tokens as the values of the first layer that has its own. */
  private int countTokens() throws IOException {
    int layer = 0;
    while (geometry.source(layer) != layer) {
      layer++;
    }
    String name = "layers." + layer + ".v";
    Safetensors file = file(name);
    Safetensors.Entry entry = file.entries().get(name);
    if (entry == null || entry.shape().size() != 3) {
      throw new SafetensorsException(file.path(), "\"" + name + "\" is not three-dimensional", null);
    }
    long count = entry.shape().get(layout == Layout.HEADS_FIRST ? 1 : 0);
    if (count < 1 || count > Integer.MAX_VALUE) {
      throw new SafetensorsException(file.path(), "\"" + name + "\" has " + count + " tokens", null);
    }
    return (int) count;
  }

  private Safetensors file(String name) throws SafetensorsException {
    Safetensors file = fileOfTensor.get(name);
    if (file == null) {
      String where = files.stream().map(f -> f.path().toString()).reduce((a, b) -> a + ", " + b).orElse("no file");
      throw new SafetensorsException(Path.of(where), "there is no tensor \"" + name + "\"", null);
    }
    return file;
  }

  private float[] read(int layer, String suffix, int heads) throws IOException {
    String name = "layers." + layer + "." + suffix;
    Safetensors file = file(name);
    int channels = geometry.headDim(layer);
    boolean headsFirst = layout == Layout.HEADS_FIRST;
    List<Long> expected =
        headsFirst
            ? List.of((long) heads, (long) tokens, (long) channels)
            : List.of((long) tokens, (long) heads, (long) channels);
    Tensor tensor = file.read(name);
    if (!tensor.shape().equals(expected)) {
      throw new SafetensorsException(
          file.path(), "\"" + name + "\" has the shape " + tensor.shape() + ", not " + expected, null);
    }
    float[] elements = tensor.toFloats();
    return headsFirst ? tokensFirst(elements, heads, channels) : elements;
  }

  private float[] tokensFirst(float[] headsFirst, int heads, int channels) {
    float[] result = new float[headsFirst.length];
    for (int head = 0; head < heads; head++) {
      for (int token = 0; token < tokens; token++) {
        System.arraycopy(
            headsFirst, (head * tokens + token) * channels, result, (token * heads + head) * channels, channels);
      }
    }
    return result;
  }
}
