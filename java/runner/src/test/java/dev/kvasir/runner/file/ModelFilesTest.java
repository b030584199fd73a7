package dev.kvasir.runner.file;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.file.ModelFingerprint;
import dev.kvasir.runner.GgufWriter;
import dev.kvasir.runner.Model;
import dev.kvasir.runner.TinyModel;
import dev.kvasir.tensor.Safetensors;
import dev.kvasir.tensor.Tensor;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** A model's fingerprint is made of the files that the model is read from, or there is none. */
class ModelFilesTest {

  @TempDir Path folder;

  private void assertRefused(String named, List<Path> files) {
    IOException e = assertThrows(IOException.class, () -> ModelFingerprint.of(files), named);
    assertTrue(e.getMessage().contains(named), e.getMessage());
  }

  @Test
  void theFirstOfSeveralFilesStandsForAll() throws Exception {
    Path whole = folder.resolve("m.gguf");
    List<GgufWriter> parts = TinyModel.gguf(whole, "qwen3", 3).gguf().split(3, true);
    List<Path> files =
        List.of(1, 2, 3).stream().map(i -> folder.resolve("m-0000" + i + "-of-00003.gguf")).toList();
    Path first = files.get(0);
    parts.get(0).write(first);
    parts.get(1).write(files.get(1));
    assertThrows(NoSuchFileException.class, () -> Model.load(first));
    assertThrows(NoSuchFileException.class, () -> ModelFingerprint.of(first));
    parts.get(2).write(files.get(2));
    Model.load(first);
    ModelFingerprint all = ModelFingerprint.of(first);
    assertEquals(all, ModelFingerprint.of(files));
    assertEquals(all, ModelFingerprint.of(List.of(first)));
    assertNotEquals(all, ModelFingerprint.of(whole));
    Path adapter = Files.writeString(folder.resolve("adapter"), "lora");
    assertEquals(
        ModelFingerprint.of(List.of(first, files.get(1), files.get(2), adapter)),
        ModelFingerprint.of(List.of(first, adapter)));
    assertRefused(files.get(1) + " is a part", files.subList(1, 3));
    assertRefused("with 1 of the 2 other parts", files.subList(0, 2));
    byte[] last = Files.readAllBytes(files.get(2));
    last[last.length - 1] ^= 1;
    Files.write(files.get(2), last);
    assertNotEquals(all, ModelFingerprint.of(first));
    for (String wrong : List.of("split.no", "split.count")) {
      parts.get(2).integer(wrong, 1);
      parts.get(2).write(files.get(2));
      assertThrows(ModelException.class, () -> Model.load(first), wrong);
      assertRefused("split.no and split.count are", List.of(first));
      parts.get(2).integer("split.no", 2);
      parts.get(2).integer("split.count", 3);
    }
    Path renamed = Files.copy(first, folder.resolve("n.gguf"));
    assertRefused("-00001-of-00003.gguf", List.of(renamed));
    parts.get(0).integer("split.count", 1);
    parts.get(0).write(renamed);
    assertNotEquals(ModelFingerprint.of(whole), ModelFingerprint.of(renamed)); // one is all
  }

  @Test
  void headersThatCannotBeReadAreNoHeadersOfWholeModels() throws Exception {
    byte[] bytes = TinyModel.gguf(folder.resolve("m.gguf"), "llama", 3).gguf().split(2, true).get(0).bytes();
    Path file = Files.write(folder.resolve("cut.gguf"), Arrays.copyOf(bytes, 200));
    assertRefused(file.toString(), List.of(file));
    byte[] wrong = bytes.clone();
    ByteBuffer.wrap(wrong).order(ByteOrder.LITTLE_ENDIAN).putLong(24, -1); // the length of the first key
    Files.write(file, wrong);
    assertRefused("a length of 18446744073709551615", List.of(file));
    wrong = Arrays.copyOf(wrong, 1 << 17);
    ByteBuffer.wrap(wrong).order(ByteOrder.LITTLE_ENDIAN).putLong(24, 1 << 16);
    Files.write(file, wrong);
    assertRefused("a key of 65536 bytes", List.of(file));
    Files.write(file, new byte[] {'G', 'G', 'U', 'F'});
    ModelFingerprint.of(file); // too short for a model: any bytes have a fingerprint
  }

  @Test
  void aFolderStandsForItsConfigurationAndAllItsWeights() throws Exception {
    TinyModel.qwen2(folder, 5);
    Path single = folder.resolve("model.safetensors");
    Path config = folder.resolve("config.json");
    assertEquals(ModelFingerprint.of(List.of(config, single)), ModelFingerprint.of(folder));
    Map<String, Tensor> one = new LinkedHashMap<>();
    Map<String, Tensor> two = new LinkedHashMap<>();
    StringBuilder index = new StringBuilder();
    try (Safetensors opened = Safetensors.open(single)) {
      for (String name : opened.entries().keySet()) {
        boolean first = one.size() <= two.size();
        (first ? one : two).put(name, opened.read(name));
        index.append(index.isEmpty() ? "" : ",").append("\"" + name + "\": \"" + (first ? "b" : "a") + ".safetensors\"");
      }
    }
    Path b = folder.resolve("b.safetensors");
    Path a = folder.resolve("a.safetensors");
    Safetensors.write(b, Map.of(), one);
    Files.writeString(folder.resolve("model.safetensors.index.json"), "{\"weight_map\": {" + index + "}}");
    assertThrows(NoSuchFileException.class, () -> ModelFingerprint.of(folder));
    Safetensors.write(a, Map.of(), two);
    Model.load(folder);
    assertEquals(ModelFingerprint.of(List.of(config, a, b)), ModelFingerprint.of(folder));
    assertRefused("one of the 2 files of a model's weights", List.of(b));
    ModelFingerprint.of(single); // none of them
    Files.writeString(config, Files.readString(config) + " ");
    assertNotEquals(ModelFingerprint.of(List.of(a, b)), ModelFingerprint.of(folder));
    Files.delete(config);
    assertThrows(NoSuchFileException.class, () -> ModelFingerprint.of(folder));
  }
}
