package dev.kvasir.calibrate;

import static dev.kvasir.Testing.assertNames;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvGeometry;
import dev.kvasir.Testing;
import dev.kvasir.rope.RopePairs;
import dev.kvasir.tensor.Safetensors;
import dev.kvasir.tensor.Tensor;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class ProfileTest {

  @TempDir Path folder;

  private static KvGeometry geometry() {
    return KvGeometry.builder().layers(2).queryHeads(4).kvHeads(2).headDim(32).headDim(1, 48).build();
  }

  private static KeyScaling scaling() {
    float[] first = new float[64];
    float[] second = new float[96];
    Arrays.fill(first, 2);
    Arrays.fill(second, 0.5f);
    first[3] = first[19] = 7.25f;
    return new KeyScaling(
        geometry(),
        RopePairs.HALVES,
        List.of(0.0, 0.5, 1.0),
        List.of(
            new KeyScaling.Layer(32, 0.5, first, new double[] {3, 1, 2}),
            new KeyScaling.Layer(48, 1.0, second, new double[] {3, 2, 0.1})));
  }

  private static Profile full() {
    return Profile.builder(geometry())
        .keyScaling(scaling())
        .sensitivities(
            new Sensitivities(
                List.of(2, 4),
                List.of(List.of(1.5, 0.1), List.of(1e300, 0.0)),
                List.of(List.of(3.0, 2.0), List.of(1.0, 1.0))))
        .plan(new BitPlan(List.of(2, 4), List.of(4, 16), 0.1 + 0.2, 1L << 40, 1L << 41, true))
        .tensor("codebook.0", Tensor.ofFloats(new float[] {1, 2, 3, 4, 5, 6}, 2, 3))
        .note("text", "wiki \"é\"")
        .build();
  }

  private Path path() {
    return folder.resolve("model.profile");
  }

  private void assertRefused(Object... named) {
    ProfileException thrown = assertThrows(ProfileException.class, () -> Profile.load(path(), geometry()));
    assertNames(thrown, path());
    assertNames(thrown, named);
  }

  @Test
  void keepsWhatItHolds() throws IOException {
    full().save(path());
    Profile loaded = Profile.load(path(), geometry());
    assertEquals(full().keyScaling(), loaded.keyScaling());
    assertEquals(full().sensitivities(), loaded.sensitivities());
    assertEquals(full().plan(), loaded.plan());
    assertEquals(full().tensors(), loaded.tensors());
    assertEquals(full().notes(), loaded.notes());
    assertEquals(geometry(), loaded.geometry());
    loaded.toBuilder().note("text", "other").build().save(path());
    assertEquals(Map.of("text", "other"), Profile.load(path(), geometry()).notes());
    assertEquals(full().keyScaling(), Profile.load(path()).keyScaling());
  }

  @Test
  void keepsNothingIfItHoldsNothing() throws IOException {
    Profile.builder(geometry()).build().save(path());
    Profile loaded = Profile.load(path(), geometry());
    assertTrue(loaded.keyScaling().isEmpty() && loaded.sensitivities().isEmpty() && loaded.plan().isEmpty());
    assertTrue(loaded.tensors().isEmpty() && loaded.notes().isEmpty());
  }

  @Test
  void keepsAScalingWithoutAlphas() throws IOException {
    float[] ones = new float[64];
    float[] more = new float[96];
    Arrays.fill(ones, 1);
    Arrays.fill(more, 1e4f);
    KeyScaling scaling = KeyScaling.of(geometry(), RopePairs.NEIGHBOURS, List.of(ones, more));
    Profile.builder(geometry()).keyScaling(scaling).build().save(path());
    KeyScaling loaded = Profile.load(path(), geometry()).keyScaling().orElseThrow();
    assertEquals(scaling, loaded);
    assertTrue(Double.isNaN(loaded.alpha(0)));
    assertFalse(loaded.equals(scaling()));
  }

  @Test
  void refusesAnotherGeometry() throws IOException {
    full().save(path());
    for (KvGeometry other :
        List.of(
            KvGeometry.builder().layers(3).queryHeads(4).kvHeads(2).headDim(32).build(),
            KvGeometry.builder().layers(2).queryHeads(4).kvHeads(2).headDim(32).build(),
            KvGeometry.builder().layers(2).queryHeads(4).kvHeads(4).headDim(32).headDim(1, 48).build(),
            KvGeometry.builder().layers(2).queryHeads(8).kvHeads(2).headDim(32).headDim(1, 48).build())) {
      assertNames(assertThrows(ProfileException.class, () -> Profile.load(path(), other)), path(), "another model");
    }
    KvGeometry windows =
        KvGeometry.builder().layers(2).queryHeads(4).kvHeads(2).headDim(32).headDim(1, 48).slidingWindow(7).build();
    Profile.load(path(), windows);
  }

  @Test
  void refusesOtherFiles() throws IOException {
    assertThrows(NoSuchFileException.class, () -> Profile.load(path(), geometry()));
    Files.writeString(path(), "hello, this is not a profile at all");
    assertRefused();
    Files.write(path(), new byte[0]);
    assertRefused();
    Safetensors.write(path(), Map.of(), Map.of("x", Tensor.ofInts(new int[1])));
    assertRefused("no profile");
    change("kvasir.version", "2");
    assertRefused("version 2");
    change("kvasir.version", null);
    assertRefused("version null");
  }

  /** Rewrites the full profile with one text changed or removed, and everything else as it was. */
  private void change(String name, String text) throws IOException {
    full().save(path());
    Map<String, Tensor> tensors = new TreeMap<>();
    Map<String, String> metadata;
    try (Safetensors file = Safetensors.open(path())) {
      metadata = new TreeMap<>(file.metadata());
      for (String tensor : file.entries().keySet()) {
        tensors.put(tensor, file.read(tensor));
      }
    }
    metadata.remove(name);
    if (text != null) {
      metadata.put(name, text);
    }
    Safetensors.write(path(), metadata, tensors);
  }

  @Test
  void theChecksumCoversTheMetadata() throws IOException {
    change("kvasir.geometry", "[[4,2,32],[4,2,64]]");
    assertRefused("damaged");
    change("text", "another note");
    assertRefused("damaged");
    change("kvasir.crc32c", "00000000");
    assertRefused("damaged", "00000000");
    change("kvasir.crc32c", null);
    assertRefused("damaged");
  }

  @Test
  void refusesEveryTruncationAndEveryFlippedBit() throws IOException {
    Random random = Testing.random("refusesEveryTruncationAndEveryFlippedBit");
    full().save(path());
    byte[] good = Files.readAllBytes(path());
    for (int i = 0; i < 100; i++) {
      Files.write(path(), Arrays.copyOf(good, random.nextInt(good.length)));
      assertRefused();
    }
    Files.write(path(), Arrays.copyOf(good, good.length + 1));
    assertRefused();
    for (int i = 0; i < 600; i++) {
      byte[] damaged = good.clone();
      // Half of them in the length and the beginning of the header, where a mistake costs most.
      damaged[i % 2 == 0 ? random.nextInt(good.length) : random.nextInt(400)] ^= 1 << random.nextInt(8);
      Files.write(path(), damaged);
      assertRefused();
    }
    Files.write(path(), good);
    Profile.load(path(), geometry());
  }

  /** Writes a profile whose checksum is right and whose content is not. */
  private void forge(Map<String, String> texts, Map<String, Tensor> tensors) throws IOException {
    Map<String, String> metadata = new TreeMap<>(Map.of("kvasir.format", "profile", "kvasir.version", "1"));
    metadata.put("kvasir.geometry", "[[4,2,32],[4,2,48]]");
    metadata.put("kvasir.holds", "[]");
    metadata.putAll(texts);
    metadata.put("kvasir.crc32c", "");
    Safetensors.write(path(), metadata, tensors);
    String message = assertThrows(ProfileException.class, () -> Profile.load(path())).getMessage();
    metadata.put("kvasir.crc32c", message.replaceAll(".*its checksum is ([0-9a-f]{8}) .*", "$1"));
    Safetensors.write(path(), metadata, tensors);
  }

  @Test
  void refusesContentThatMakesNoSense() throws IOException {
    forge(Map.of(), Map.of());
    Profile.load(path(), geometry());
    for (String geometry :
        List.of("", "1", "[]", "[[4,2]]", "[[4,3,32]]", "[[4,2,33]]", "[[4,2,-32]]", "[[4,2,4294967328]]",
            "[[1.5,1,32]]",
            "[" + "[4,2,32],".repeat(5000) + "[4,2,32]]")) {
      forge(Map.of("kvasir.geometry", geometry), Map.of());
      assertRefused("makes no sense");
    }
    forge(Map.of("kvasir.holds", "[\"codes\"]"), Map.of());
    assertRefused("codes");
    forge(Map.of(), Map.of("stray", Tensor.ofInts(new int[1])));
    assertRefused("stray");
    Map<String, String> holdsPlan =
        Map.of(
            "kvasir.holds", "[\"plan\"]",
            "kvasir.plan", "{\"objective\":1.0,\"bytes\":1,\"budget\":2,\"optimal\":true}");
    Tensor two = Tensor.ofInts(new int[] {2, 2}, 2);
    forge(holdsPlan, Map.of("plan.key_bits", two));
    assertRefused("plan.value_bits");
    forge(holdsPlan, Map.of("plan.key_bits", two, "plan.value_bits", Tensor.ofInts(new int[3], 3)));
    assertRefused("plan.value_bits");
    forge(holdsPlan, Map.of("plan.key_bits", two, "plan.value_bits", Tensor.ofInts(new int[] {2, 99}, 2)));
    assertRefused("99");
    forge(holdsPlan, Map.of("plan.key_bits", two, "plan.value_bits", Tensor.ofFloats(new float[2], 2)));
    assertRefused("F32");
    forge(holdsPlan, Map.of("plan.key_bits", two, "plan.value_bits", two));
    assertEquals(List.of(2, 2), Profile.load(path(), geometry()).plan().orElseThrow().keyBits());
    Tensor nothing = Tensor.ofDoubles(new double[0], 2, 0);
    forge(
        Map.of("kvasir.holds", "[\"sensitivities\"]"),
        Map.of(
            "sensitivities.widths", Tensor.ofInts(new int[0], 0),
            "sensitivities.keys", nothing,
            "sensitivities.values", nothing));
    assertRefused("makes no sense");
    forge(Map.of("kvasir.holds", "[\"key_scaling\"]", "kvasir.key_scaling", "{\"pairs\":\"THIRDS\"}"), Map.of());
    assertRefused("makes no sense");
  }

  @Test
  void refusesFactorsThatNoCacheCouldUse() throws IOException {
    full().save(path());
    Map<String, Tensor> tensors = new TreeMap<>();
    try (Safetensors file = Safetensors.open(path())) {
      for (String name : file.entries().keySet()) {
        if (name.startsWith("key_scaling")) {
          tensors.put(name, file.read(name));
        }
      }
    }
    Map<String, String> texts =
        Map.of("kvasir.holds", "[\"key_scaling\"]", "kvasir.key_scaling", "{\"pairs\":\"HALVES\"}");
    forge(texts, tensors);
    Profile.load(path(), geometry());
    for (float factor : new float[] {0, -1, Float.NaN, Float.POSITIVE_INFINITY, 1e-5f, 1e5f, 3}) {
      float[] lambda = tensors.get("key_scaling.lambda.0").toFloats();
      lambda[5] = factor;
      Map<String, Tensor> changed = new TreeMap<>(tensors);
      changed.put("key_scaling.lambda.0", Tensor.ofFloats(lambda, 2, 32));
      forge(texts, changed);
      // 3 is a good factor, but not that of channel 5's partner.
      assertRefused(factor == 3 ? "pair" : "factor");
    }
  }

  @Test
  void theBuilderChecksWhatItIsGiven() {
    KvGeometry other = KvGeometry.builder().layers(1).queryHeads(4).kvHeads(2).headDim(32).build();
    Profile.Builder builder = Profile.builder(other);
    assertThrows(IllegalArgumentException.class, () -> builder.keyScaling(scaling()));
    assertThrows(IllegalArgumentException.class, () -> builder.plan(full().plan().orElseThrow()));
    assertThrows(IllegalArgumentException.class, () -> builder.sensitivities(full().sensitivities().orElseThrow()));
    Tensor tensor = Tensor.ofInts(new int[1]);
    for (String name : List.of("", "plan.x", "key_scaling.lambda.0", "sensitivities.keys", "__metadata__")) {
      assertThrows(IllegalArgumentException.class, () -> builder.tensor(name, tensor), name);
    }
    assertThrows(IllegalArgumentException.class, () -> builder.note("kvasir.version", "7"));
    assertThrows(IllegalArgumentException.class, () -> builder.note("", "7"));
  }
}
