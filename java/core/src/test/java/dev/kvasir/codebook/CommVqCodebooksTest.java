package dev.kvasir.codebook;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvGeometry;
import dev.kvasir.Testing;
import dev.kvasir.calibrate.Profile;
import dev.kvasir.calibrate.ProfileException;
import dev.kvasir.rope.RopePairs;
import dev.kvasir.tensor.Safetensors;
import dev.kvasir.tensor.SafetensorsException;
import dev.kvasir.tensor.Tensor;
import dev.kvasir.tensor.TensorType;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class CommVqCodebooksTest {

  private static final KvGeometry GEOMETRY =
      KvGeometry.builder().layers(3).queryHeads(4).kvHeads(2).headDim(32).build();

  @TempDir Path folder;

  private static KeyCodebook keys(int kvHeads, RopePairs pairs) {
    return new KeyCodebook(kvHeads, 32, pairs, 2, 16, CommVqTesting.correlated(1, 1, kvHeads * 2 * 16, 32));
  }

  private static ValueCodebook values(int width) {
    float[] thresholds = new float[32];
    Arrays.fill(thresholds, 0.75f);
    return new ValueCodebook(width, 32, CommVqTesting.correlated(1, 2, 32, width), thresholds);
  }

  private static CommVqCodebooks codebooks() {
    ValueEncoder encoder = new ValueEncoder(ValueCodebookTest.weights(64, 8, 32));
    return CommVqCodebooks.builder(GEOMETRY)
        .keys(0, keys(2, RopePairs.HALVES))
        .values(0, values(64))
        .keys(1, keys(2, RopePairs.NEIGHBOURS))
        .values(2, new TrainedValues(encoder, values(64)))
        .build();
  }

  private static Map<String, Tensor> tensors(Path path) throws Exception {
    Map<String, Tensor> tensors = new HashMap<>();
    try (Safetensors file = Safetensors.open(path)) {
      for (String name : file.entries().keySet()) {
        tensors.put(name, file.read(name));
      }
    }
    return tensors;
  }

  @Test
  void survivesAProfile() throws Exception {
    CommVqCodebooks codebooks = codebooks();
    Path path = folder.resolve("profile");
    Profile.builder(GEOMETRY).codebooks(codebooks).note("text", "none").build().save(path);
    CommVqCodebooks loaded = Profile.load(path, GEOMETRY).codebooks();
    assertEquals(codebooks, loaded);
    assertEquals(codebooks.hashCode(), loaded.hashCode());
    assertEquals(RopePairs.NEIGHBOURS, loaded.keys(1).orElseThrow().pairs());
    assertTrue(loaded.values(1).isEmpty());
    assertTrue(loaded.encoder(0).isEmpty());
    assertTrue(loaded.encoder(2).isPresent());
    // A profile without codebooks has none.
    assertTrue(Profile.builder(GEOMETRY).build().codebooks().keys(0).isEmpty());

    // One bit wrong anywhere.
    byte[] bytes = Files.readAllBytes(path);
    for (int at : new int[] {bytes.length - 1, bytes.length / 2}) {
      byte[] damaged = bytes.clone();
      damaged[at] ^= 4;
      Files.write(path, damaged);
      assertThrows(ProfileException.class, () -> Profile.load(path, GEOMETRY));
    }
    Files.write(path, Arrays.copyOf(bytes, bytes.length - 7));
    assertThrows(ProfileException.class, () -> Profile.load(path, GEOMETRY));
    Files.write(path, bytes);
    KvGeometry other = KvGeometry.builder().layers(3).queryHeads(4).kvHeads(1).headDim(32).build();
    Testing.assertNames(assertThrows(ProfileException.class, () -> Profile.load(path, other)), "[4, 2, 32]");
  }

  @Test
  void survivesAPlainFile() throws Exception {
    Path path = folder.resolve("codebooks.safetensors");
    codebooks().save(path);
    assertEquals(codebooks(), CommVqCodebooks.load(path, GEOMETRY));

    // Other tensors are none of ours; tables of other types are read; thresholds may be missing.
    Map<String, Tensor> tensors = tensors(path);
    float[] tables = tensors.get("commvq.0.key_tables").toFloats();
    tensors.put("other", Tensor.ofFloats(new float[3], 3));
    tensors.put("commvq.0.key_tables", Tensor.ofFloats(tables, 2, 2, 16, 32));
    tensors.remove("commvq.0.value_thresholds");
    Safetensors.write(path, Map.of(), tensors);
    CommVqCodebooks loaded = CommVqCodebooks.load(path, GEOMETRY);
    assertEquals(codebooks().keys(0), loaded.keys(0));
    float[] half = new float[32];
    Arrays.fill(half, 0.5f);
    assertArrayEquals(half, loaded.values(0).orElseThrow().thresholds());

    byte[] bytes = Files.readAllBytes(path);
    Files.write(path, Arrays.copyOf(bytes, bytes.length - 100));
    Testing.assertNames(
        assertThrows(SafetensorsException.class, () -> CommVqCodebooks.load(path, GEOMETRY)), "cut short");
    Safetensors.write(path, Map.of(), Map.of("other", Tensor.ofFloats(new float[3], 3)));
    assertThrows(SafetensorsException.class, () -> CommVqCodebooks.load(path, GEOMETRY));
  }

  @Test
  void refusesWhatDoesNotBelong() throws Exception {
    Path path = folder.resolve("codebooks.safetensors");
    codebooks().save(path);
    Map<String, Tensor> good = tensors(path);
    KvGeometry wide = KvGeometry.builder().layers(3).queryHeads(4).kvHeads(2).headDim(64).build();
    Testing.assertNames(
        assertThrows(SafetensorsException.class, () -> CommVqCodebooks.load(path, wide)),
        "commvq.0.key_tables",
        "[2, 2, 16, 32]",
        "64");
    KvGeometry shallow = KvGeometry.builder().layers(2).queryHeads(4).kvHeads(2).headDim(32).build();
    Testing.assertNames(
        assertThrows(SafetensorsException.class, () -> CommVqCodebooks.load(path, shallow)), "commvq.2.", "2 layers");

    Map<String, Tensor> changes = new HashMap<>();
    changes.put("commvq.0.key_tables", Tensor.ofFloats(new float[2 * 17 * 32], 2, 1, 17, 32));
    changes.put("commvq.1.key_pairs", Tensor.ofInts(new int[] {2}));
    changes.put("commvq.0.value_table", Tensor.ofFloats(new float[32 * 63], 32, 63));
    changes.put("commvq.0.value_thresholds", Tensor.ofFloats(new float[31], 31));
    changes.put("commvq.2.encoder.first.bias", Tensor.ofFloats(new float[7], 7));
    changes.put("commvq.2.encoder.scale", Tensor.ofFloats(new float[64], 64));
    changes.put("commvq.0.something", Tensor.ofFloats(new float[1], 1));
    // Without elements, so a dimension may be as large as it likes.
    changes.put("commvq.1.key_tables", Tensor.ofBytes(TensorType.F16, new byte[0], 2, 1L << 40, 0, 32));
    changes.put("commvq.1.value_table", Tensor.ofBytes(TensorType.F16, new byte[0], 1L << 40, 0));
    changes.put("commvq.x", Tensor.ofFloats(new float[1], 1));
    float[] infinite = new float[2 * 2 * 16 * 32];
    infinite[5] = Float.NEGATIVE_INFINITY;
    for (Map.Entry<String, Tensor> change : changes.entrySet()) {
      Map<String, Tensor> bad = new HashMap<>(good);
      bad.put(change.getKey(), change.getValue());
      assertRefused(bad, change.getKey());
    }
    Map<String, Tensor> bad = new HashMap<>(good);
    bad.put("commvq.0.key_tables", Tensor.ofFloats(infinite, 2, 2, 16, 32));
    assertRefused(bad, "an infinite table");
    for (String name : new String[] {"commvq.0.key_pairs", "commvq.2.encoder.norm.bias"}) {
      Map<String, Tensor> partial = new HashMap<>(good);
      partial.remove(name);
      assertRefused(partial, "no " + name);
    }

    CommVqCodebooks.Builder builder = CommVqCodebooks.builder(GEOMETRY);
    assertThrows(IllegalArgumentException.class, () -> builder.keys(0, keys(1, RopePairs.HALVES)));
    assertThrows(IllegalArgumentException.class, () -> builder.values(0, values(32)));
    assertThrows(IllegalArgumentException.class, () -> builder.values(3, values(64)));
    assertThrows(IllegalArgumentException.class, () -> builder.build().encoder(-1));
    ValueEncoder encoder = new ValueEncoder(ValueCodebookTest.weights(64, 8, 16));
    assertThrows(
        IllegalArgumentException.class, () -> builder.values(0, new TrainedValues(encoder, values(64))));
  }

  private void assertRefused(Map<String, Tensor> tensors, String what) throws Exception {
    Path path = folder.resolve("bad.safetensors");
    Safetensors.write(path, Map.of(), tensors);
    assertThrows(SafetensorsException.class, () -> CommVqCodebooks.load(path, GEOMETRY), what);
    Profile.Builder profile = Profile.builder(GEOMETRY);
    tensors.forEach(profile::tensor);
    assertThrows(ProfileException.class, () -> profile.build().codebooks(), what);
  }

  @Test
  void halvesAreExact() {
    for (int bits = 0; bits < 0x7C00; bits++) {
      for (int sign : new int[] {0, 0x8000}) {
        byte[] bytes = {(byte) bits, (byte) (bits >> 8 | sign >> 8)};
        float value = Tensor.ofBytes(dev.kvasir.tensor.TensorType.F16, bytes).toFloats()[0];
        assertEquals((short) (bits | sign), CodebookTensors.half(value));
      }
    }
  }
}
