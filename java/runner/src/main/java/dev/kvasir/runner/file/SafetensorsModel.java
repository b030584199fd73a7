package dev.kvasir.runner.file;

import dev.kvasir.internal.json.Json;
import dev.kvasir.internal.model.NativeWeights;
import dev.kvasir.tensor.Safetensors;
import dev.kvasir.tensor.SafetensorsException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * The weights of a model in the layout of Hugging Face: one {@code model.safetensors}, or several shards with a {@code
 * model.safetensors.index.json} that says which tensor is where.
 */
public final class SafetensorsModel implements WeightFile {

  private static final String SINGLE = "model.safetensors";
  private static final String INDEX = "model.safetensors.index.json";
  /** Far above any index: a million tensors take about 100 MB. */
  private static final long MAX_INDEX_BYTES = Safetensors.MAX_HEADER_BYTES;

  private final Path folder;
  private final Map<String, Safetensors> shards;
  private final Map<String, Safetensors> shardOfTensor;

  private SafetensorsModel(Path folder, Map<String, Safetensors> shards, Map<String, Safetensors> shardOfTensor) {
    this.folder = folder;
    this.shards = shards;
    this.shardOfTensor = Collections.unmodifiableMap(shardOfTensor);
  }

  /**
   * Opens the files of a model.
   *
   * @param folder the folder that holds them
   * @return the open model
   * @throws SafetensorsException if a file is invalid, or a shard lacks a tensor that the index says it has
   * @throws IOException if a file cannot be read
   */
  public static SafetensorsModel open(Path folder) throws IOException {
    Map<String, Safetensors> shards = new LinkedHashMap<>();
    try {
      Path index = folder.resolve(INDEX);
      Map<String, Safetensors> tensors =
          Files.exists(index) ? openShards(folder, index, shards) : openSingle(folder.resolve(SINGLE), shards);
      return new SafetensorsModel(folder, shards, tensors);
    } catch (IOException | RuntimeException | Error e) {
      closeAll(shards, e);
      throw e;
    }
  }

  @Override
  public Set<String> names() {
    return shardOfTensor.keySet();
  }

  /**
   * Where a tensor is and what it is like.
   *
   * @param name its name
   * @return its entry in its shard
   * @throws SafetensorsException if there is no such tensor
   */
  public Safetensors.Entry entry(String name) throws SafetensorsException {
    Safetensors.Entry entry = shard(name).entries().get(name);
    if (entry == null) {
      throw missing(folder, name);
    }
    return entry;
  }

  @Override
  public boolean has(String name) {
    return shardOfTensor.containsKey(name);
  }

  /** Copies a tensor into memory of its own. */
  @Override
  public Weights read(String name) throws IOException {
    try {
      Safetensors.Entry entry = entry(name);
      WeightType type =
          switch (entry.type()) {
            case F32 -> WeightType.F32;
            case F16 -> WeightType.F16;
            case BF16 -> WeightType.BF16;
            default ->
                throw new ModelException(
                    folder + ": " + name + " is of type " + entry.type() + "; F32, F16 and BF16 can be run");
          };
      List<Long> shape = entry.shape();
      if (shape.isEmpty() || shape.size() > 2 || shape.contains(0L)) {
        throw new ModelException(folder + ": " + name + " is " + shape + ", neither a vector nor a matrix");
      }
      if (entry.bytes() > Integer.MAX_VALUE) {
        throw new ModelException(folder + ": " + name + " has " + entry.bytes() + " bytes; up to 2 GiB can be run");
      }
      ByteBuffer bytes = NativeWeights.memory((int) entry.bytes());
      shard(name).read(name, bytes);
      int width = Math.toIntExact(shape.get(shape.size() - 1));
      return new Weights(name, type, shape.size() == 1 ? 1 : Math.toIntExact(shape.get(0)), width, bytes.flip());
    } catch (SafetensorsException e) {
      throw new ModelException(folder + ": " + e.getMessage(), e);
    }
  }

  /** Closes the files. Tensors that were read stay valid. */
  @Override
  public void close() throws IOException {
    IOException failure = closeAll(shards, null);
    if (failure != null) {
      throw failure;
    }
  }

  @Override
  public String toString() {
    return "SafetensorsModel[" + folder + ", " + shards.size() + " files, " + shardOfTensor.size() + " tensors]";
  }

  private Safetensors shard(String name) throws SafetensorsException {
    Safetensors shard = shardOfTensor.get(name);
    if (shard == null) {
      throw missing(folder, name);
    }
    return shard;
  }

  private static Map<String, Safetensors> openSingle(Path file, Map<String, Safetensors> shards) throws IOException {
    Safetensors single = Safetensors.open(file);
    shards.put(SINGLE, single);
    Map<String, Safetensors> tensors = new LinkedHashMap<>();
    single.entries().keySet().forEach(name -> tensors.put(name, single));
    return tensors;
  }

  private static Map<String, Safetensors> openShards(Path folder, Path index, Map<String, Safetensors> shards)
      throws IOException {
    long size = Files.size(index);
    if (size > MAX_INDEX_BYTES) {
      throw new SafetensorsException(index, "an index of " + size + " bytes", null);
    }
    Map<String, Safetensors> tensors = new LinkedHashMap<>();
    try {
      Map<String, @Nullable Object> root = Json.object(Json.parse(Files.readAllBytes(index)), "it");
      for (Map.Entry<String, @Nullable Object> item : Json.object(root.get("weight_map"), "weight_map").entrySet()) {
        String shardName = Json.string(item.getValue(), "a file name in weight_map");
        Safetensors shard = shards.get(shardName);
        if (shard == null) {
          shard = Safetensors.open(inFolder(folder, index, shardName));
          shards.put(shardName, shard);
        }
        if (!shard.entries().containsKey(item.getKey())) {
          throw missing(shard.path(), item.getKey());
        }
        tensors.put(item.getKey(), shard);
      }
    } catch (Json.SyntaxException e) {
      throw new SafetensorsException(index, String.valueOf(e.getMessage()), e);
    }
    return tensors;
  }

  /** A file of the folder itself: an index must not lead anywhere else. */
  private static Path inFolder(Path folder, Path index, String name) throws SafetensorsException {
    if (name.isEmpty() || name.startsWith(".") || name.indexOf('/') >= 0 || name.indexOf('\\') >= 0
        || name.indexOf('\0') >= 0) {
      throw new SafetensorsException(index, "\"" + Json.abbreviate(name) + "\" is no file of this folder", null);
    }
    try {
      return folder.resolve(name);
    } catch (InvalidPathException e) {
      throw new SafetensorsException(index, "\"" + Json.abbreviate(name) + "\" is no file name here", e);
    }
  }

  private static SafetensorsException missing(Path where, String name) {
    return new SafetensorsException(where, "there is no tensor \"" + Json.abbreviate(name) + "\"", null);
  }

  private static @Nullable IOException closeAll(Map<String, Safetensors> shards, @Nullable Throwable cause) {
    IOException first = null;
    for (Safetensors shard : shards.values()) {
      try {
        shard.close();
      } catch (IOException e) {
        if (cause != null) {
          cause.addSuppressed(e);
        } else if (first == null) {
          first = e;
        } else {
          first.addSuppressed(e);
        }
      }
    }
    return first;
  }
}
