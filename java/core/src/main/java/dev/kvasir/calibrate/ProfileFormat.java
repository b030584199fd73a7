package dev.kvasir.calibrate;

import dev.kvasir.KvGeometry;
import dev.kvasir.internal.json.Json;
import dev.kvasir.rope.RopePairs;
import dev.kvasir.tensor.Safetensors;
import dev.kvasir.tensor.SafetensorsException;
import dev.kvasir.tensor.Tensor;
import dev.kvasir.tensor.TensorType;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import java.util.stream.DoubleStream;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import java.util.zip.CRC32C;
import org.jspecify.annotations.Nullable;

/**
 * The file of a {@link Profile}: a safetensors file with these metadata.
 *
 * <pre>
 * kvasir.format       "profile"
 * kvasir.version      "1"
 * kvasir.geometry     JSON: for each layer [queryHeads, kvHeads, headDim]
 * kvasir.holds        JSON: the sections, of key_scaling, sensitivities, plan, tensors
 * kvasir.key_scaling  JSON: {"pairs": "HALVES"}
 * kvasir.plan         JSON: {"objective": ..., "bytes": ..., "budget": ..., "optimal": ...}
 * kvasir.crc32c       eight hexadecimal digits
 * anything else       notes
 * </pre>
 *
 * <p>Tensors: {@code key_scaling.alphas} F64 [n], {@code key_scaling.alpha} F64 [layers], {@code
 * key_scaling.lambda.<i>} F32 [kvHeads, headDim], {@code key_scaling.errors.<i>} F64 [n]; {@code sensitivities.widths}
 * I32 [n], {@code sensitivities.keys} and {@code .values} F64 [layers, n]; {@code plan.key_bits} and {@code
 * plan.value_bits} I32 [layers]; and those of the section "tensors" by their own names.
 *
 * <p>The checksum is CRC-32C over the compact JSON of all other metadata, ordered by name, and then, for each tensor
 * ordered by name, over the compact JSON of [name, dtype, shape] and its data.
 */
final class ProfileFormat {

  private static final String PREFIX = "kvasir.";
  private static final String FORMAT = PREFIX + "format";
  private static final String VERSION = PREFIX + "version";
  private static final String GEOMETRY = PREFIX + "geometry";
  private static final String HOLDS = PREFIX + "holds";
  private static final String CRC = PREFIX + "crc32c";

  private static final String KEY_SCALING = "key_scaling";
  private static final String SENSITIVITIES = "sensitivities";
  private static final String PLAN = "plan";
  private static final String TENSORS = "tensors";

  private ProfileFormat() {}

  static void requireFreeName(String name) {
    for (String section : List.of(KEY_SCALING, SENSITIVITIES, PLAN)) {
      if (name.isEmpty() || name.startsWith(section + ".") || name.startsWith("__")) {
        throw new IllegalArgumentException("\"" + Json.abbreviate(name) + "\" is no name for a tensor of one's own");
      }
    }
  }

  static void requireFreeNote(String name) {
    if (name.isEmpty() || name.startsWith(PREFIX)) {
      throw new IllegalArgumentException("\"" + Json.abbreviate(name) + "\" is no name for a note");
    }
  }

  static List<String> sections(Profile profile) {
    List<String> sections = new ArrayList<>();
    profile.keyScaling().ifPresent(x -> sections.add(KEY_SCALING));
    profile.sensitivities().ifPresent(x -> sections.add(SENSITIVITIES));
    profile.plan().ifPresent(x -> sections.add(PLAN));
    if (!profile.tensors().isEmpty()) {
      sections.add(TENSORS);
    }
    return sections;
  }

  /** What differs in the heads and channels of two models; null if nothing does. */
  static @Nullable String difference(KvGeometry found, KvGeometry wanted) {
    if (found.layers() != wanted.layers()) {
      return "it has " + found.layers() + " layers, not " + wanted.layers();
    }
    for (int layer = 0; layer < found.layers(); layer++) {
      if (!heads(found, layer).equals(heads(wanted, layer))) {
        return "layer " + layer + " has [query heads, kv heads, head dim] " + heads(found, layer) + ", not "
            + heads(wanted, layer);
      }
    }
    return null;
  }

  private static List<Integer> heads(KvGeometry geometry, int layer) {
    return List.of(geometry.queryHeads(layer), geometry.kvHeads(layer), geometry.headDim(layer));
  }

  // Saving -----------------------------------------------------------------------------------------------------------

  static void save(Profile profile, Path path) throws IOException {
    KvGeometry geometry = profile.geometry();
    Map<String, String> metadata = new TreeMap<>(profile.notes());
    Map<String, Tensor> tensors = new TreeMap<>(profile.tensors());
    metadata.put(FORMAT, "profile");
    metadata.put(VERSION, String.valueOf(Profile.VERSION));
    metadata.put(
        GEOMETRY,
        Json.write(
            IntStream.range(0, geometry.layers()).mapToObj(i -> heads(geometry, i)).collect(Collectors.toList())));
    metadata.put(HOLDS, Json.write(sections(profile)));
    profile.keyScaling().ifPresent(scaling -> put(scaling, geometry, metadata, tensors));
    profile.sensitivities().ifPresent(sensitivities -> put(sensitivities, tensors));
    profile.plan().ifPresent(plan -> put(plan, metadata, tensors));
    metadata.put(CRC, checksum(metadata, tensors));
    Safetensors.write(path, metadata, tensors);
  }

  private static void put(
      KeyScaling scaling, KvGeometry geometry, Map<String, String> metadata, Map<String, Tensor> tensors) {
    metadata.put(PREFIX + KEY_SCALING, Json.write(Map.of("pairs", scaling.pairs().name())));
    tensors.put(KEY_SCALING + ".alphas", doubles(scaling.alphas().stream().mapToDouble(x -> x)));
    tensors.put(KEY_SCALING + ".alpha", doubles(IntStream.range(0, scaling.layers()).mapToDouble(scaling::alpha)));
    for (int i = 0; i < scaling.layers(); i++) {
      tensors.put(
          KEY_SCALING + ".lambda." + i, Tensor.ofFloats(scaling.lambda(i), geometry.kvHeads(i), geometry.headDim(i)));
      tensors.put(KEY_SCALING + ".errors." + i, doubles(DoubleStream.of(scaling.errors(i))));
    }
  }

  private static void put(Sensitivities sensitivities, Map<String, Tensor> tensors) {
    int columns = sensitivities.widths().size();
    tensors.put(SENSITIVITIES + ".widths", ints(sensitivities.widths()));
    tensors.put(SENSITIVITIES + ".keys", matrix(sensitivities.keys(), columns));
    tensors.put(SENSITIVITIES + ".values", matrix(sensitivities.values(), columns));
  }

  private static void put(BitPlan plan, Map<String, String> metadata, Map<String, Tensor> tensors) {
    Map<String, Object> numbers = new LinkedHashMap<>();
    numbers.put("objective", plan.objective());
    numbers.put("bytes", plan.bytes());
    numbers.put("budget", plan.budgetBytes());
    numbers.put("optimal", plan.optimal());
    metadata.put(PREFIX + PLAN, Json.write(numbers));
    tensors.put(PLAN + ".key_bits", ints(plan.keyBits()));
    tensors.put(PLAN + ".value_bits", ints(plan.valueBits()));
  }

  private static Tensor doubles(DoubleStream stream) {
    double[] values = stream.toArray();
    return Tensor.ofDoubles(values, values.length);
  }

  private static Tensor ints(List<Integer> list) {
    return Tensor.ofInts(list.stream().mapToInt(x -> x).toArray(), list.size());
  }

  private static Tensor matrix(List<List<Double>> rows, int columns) {
    double[] values = rows.stream().flatMap(List::stream).mapToDouble(x -> x).toArray();
    return Tensor.ofDoubles(values, rows.size(), columns);
  }

  private static String checksum(Map<String, String> metadata, Map<String, Tensor> tensors) {
    Map<String, String> others = new TreeMap<>(metadata);
    others.remove(CRC);
    CRC32C crc = new CRC32C();
    crc.update(Json.write(others).getBytes(StandardCharsets.UTF_8));
    new TreeMap<>(tensors)
        .forEach(
            (name, tensor) -> {
              String description = Json.write(List.of(name, tensor.type().name(), tensor.shape()));
              crc.update(description.getBytes(StandardCharsets.UTF_8));
              crc.update(tensor.data());
            });
    return String.format("%08x", crc.getValue());
  }

  // Loading ----------------------------------------------------------------------------------------------------------

  static Profile load(Path path) throws IOException {
    try (Safetensors file = Safetensors.open(path)) {
      Map<String, String> metadata = file.metadata();
      if (!"profile".equals(metadata.get(FORMAT))) {
        throw new ProfileException(path + " is a safetensors file, but no profile", null);
      }
      if (!String.valueOf(Profile.VERSION).equals(metadata.get(VERSION))) {
        throw new ProfileException(
            path + " is a profile of version " + shown(metadata.get(VERSION)) + "; this is version " + Profile.VERSION, null);
      }
      Map<String, Tensor> tensors = new TreeMap<>();
      for (String name : file.entries().keySet()) {
        tensors.put(name, file.read(name));
      }
      String checksum = checksum(metadata, tensors);
      if (!checksum.equals(metadata.get(CRC))) {
        throw new ProfileException(
            path + " is damaged: its checksum is " + checksum + " and should be " + shown(metadata.get(CRC)), null);
      }
      return profile(metadata, tensors);
    } catch (SafetensorsException e) {
      throw new ProfileException(String.valueOf(e.getMessage()), e);
    } catch (Json.SyntaxException | IllegalArgumentException | IllegalStateException e) {
      throw new ProfileException(path + " makes no sense: " + e.getMessage(), e);
    }
  }

  /** What a file says, in a message: not more of it than anybody would read. */
  private static String shown(@Nullable Object text) {
    return Json.abbreviate(String.valueOf(text));
  }

  private static Profile profile(Map<String, String> metadata, Map<String, Tensor> tensors)
      throws Json.SyntaxException {
    KvGeometry geometry = geometry(json(metadata, GEOMETRY));
    Profile.Builder builder = Profile.builder(geometry);
    Map<String, Tensor> left = new TreeMap<>(tensors);
    boolean others = false;
    for (Object section : Json.array(json(metadata, HOLDS), HOLDS)) {
      switch (Json.string(section, "an element of " + HOLDS)) {
        case KEY_SCALING:
          builder.keyScaling(keyScaling(geometry, json(metadata, PREFIX + KEY_SCALING), left));
          break;
        case SENSITIVITIES:
          builder.sensitivities(sensitivities(geometry.layers(), left));
          break;
        case PLAN:
          builder.plan(plan(geometry.layers(), json(metadata, PREFIX + PLAN), left));
          break;
        case TENSORS:
          others = true;
          break;
        default:
          throw new IllegalArgumentException("it holds " + shown(section) + ", which is unknown");
      }
    }
    if (!others && !left.isEmpty()) {
      throw new IllegalArgumentException("the tensors " + shown(left.keySet()) + " belong to nothing");
    }
    left.forEach(builder::tensor);
    metadata.forEach(
        (name, text) -> {
          if (!name.startsWith(PREFIX)) {
            builder.note(name, text);
          }
        });
    return builder.build();
  }

  private static KvGeometry geometry(@Nullable Object json) throws Json.SyntaxException {
    List<@Nullable Object> layers = Json.array(json, GEOMETRY);
    KvGeometry.Builder builder = KvGeometry.builder().layers(layers.size());
    for (int i = 0; i < layers.size(); i++) {
      List<@Nullable Object> numbers = Json.array(layers.get(i), "layer " + i);
      if (numbers.size() != 3) {
        throw new IllegalArgumentException("layer " + i + " has " + numbers.size() + " numbers");
      }
      builder.queryHeads(i, integer(numbers.get(0), "query heads"));
      builder.kvHeads(i, integer(numbers.get(1), "kv heads"));
      builder.headDim(i, integer(numbers.get(2), "head dim"));
    }
    return builder.build();
  }

  private static int integer(@Nullable Object json, String what) throws Json.SyntaxException {
    long value = Json.integer(json, what);
    if (value != (int) value) {
      throw new IllegalArgumentException(value + " " + what);
    }
    return (int) value;
  }

  private static KeyScaling keyScaling(KvGeometry geometry, @Nullable Object json, Map<String, Tensor> left)
      throws Json.SyntaxException {
    String pairs = Json.string(Json.object(json, KEY_SCALING).get("pairs"), "pairs");
    double[] alphas = vector(left, KEY_SCALING + ".alphas");
    double[] alpha = take(left, KEY_SCALING + ".alpha", TensorType.F64, geometry.layers()).toDoubles();
    List<KeyScaling.Layer> layers = new ArrayList<>();
    for (int i = 0; i < geometry.layers(); i++) {
      int heads = geometry.kvHeads(i);
      int headDim = geometry.headDim(i);
      float[] lambda = take(left, KEY_SCALING + ".lambda." + i, TensorType.F32, heads, headDim).toFloats();
      double[] errors = take(left, KEY_SCALING + ".errors." + i, TensorType.F64, alphas.length).toDoubles();
      layers.add(new KeyScaling.Layer(headDim, alpha[i], lambda, errors));
    }
    List<Double> grid = DoubleStream.of(alphas).boxed().collect(Collectors.toList());
    return new KeyScaling(geometry, RopePairs.valueOf(pairs), grid, layers);
  }

  private static Sensitivities sensitivities(int layers, Map<String, Tensor> left) {
    Tensor widths = take(left, SENSITIVITIES + ".widths");
    int[] bits = widths.toInts();
    return new Sensitivities(
        IntStream.of(bits).boxed().collect(Collectors.toList()),
        rows(take(left, SENSITIVITIES + ".keys", TensorType.F64, layers, bits.length), bits.length),
        rows(take(left, SENSITIVITIES + ".values", TensorType.F64, layers, bits.length), bits.length));
  }

  private static List<List<Double>> rows(Tensor tensor, int columns) {
    List<List<Double>> rows = new ArrayList<>();
    double[] values = tensor.toDoubles();
    for (int i = 0; columns > 0 && i < values.length; i += columns) {
      rows.add(DoubleStream.of(values).skip(i).limit(columns).boxed().collect(Collectors.toList()));
    }
    return rows;
  }

  private static BitPlan plan(int layers, @Nullable Object json, Map<String, Tensor> left) throws Json.SyntaxException {
    Map<String, @Nullable Object> numbers = Json.object(json, PLAN);
    Object objective = numbers.get("objective");
    Object optimal = numbers.get("optimal");
    if (!(objective instanceof Double) || !(optimal instanceof Boolean)) {
      throw new IllegalArgumentException("the plan has the objective " + objective + ", optimal " + optimal);
    }
    return new BitPlan(
        list(take(left, PLAN + ".key_bits", TensorType.I32, layers)),
        list(take(left, PLAN + ".value_bits", TensorType.I32, layers)),
        (Double) objective,
        Json.integer(numbers.get("bytes"), "bytes"),
        Json.integer(numbers.get("budget"), "budget"),
        (Boolean) optimal);
  }

  private static List<Integer> list(Tensor tensor) {
    return IntStream.of(tensor.toInts()).boxed().collect(Collectors.toList());
  }

  private static double[] vector(Map<String, Tensor> left, String name) {
    Tensor tensor = take(left, name);
    if (tensor.type() != TensorType.F64 || tensor.shape().size() != 1) {
      throw new IllegalArgumentException("\"" + name + "\" is " + tensor + ", no vector of F64");
    }
    return tensor.toDoubles();
  }

  /** Removes a tensor from those that are left. */
  private static Tensor take(Map<String, Tensor> left, String name) {
    Tensor tensor = left.remove(name);
    if (tensor == null) {
      throw new IllegalArgumentException("there is no tensor \"" + name + "\"");
    }
    return tensor;
  }

  private static Tensor take(Map<String, Tensor> left, String name, TensorType type, long... shape) {
    Tensor tensor = take(left, name);
    List<Long> expected = LongStream.of(shape).boxed().collect(Collectors.toList());
    if (tensor.type() != type || !tensor.shape().equals(expected)) {
      throw new IllegalArgumentException("\"" + name + "\" is " + tensor + ", not " + type + " " + expected);
    }
    return tensor;
  }

  private static @Nullable Object json(Map<String, String> metadata, String name) throws Json.SyntaxException {
    String text = metadata.get(name);
    if (text == null) {
      throw new IllegalArgumentException("there is no " + name);
    }
    return Json.parse(text);
  }
}
