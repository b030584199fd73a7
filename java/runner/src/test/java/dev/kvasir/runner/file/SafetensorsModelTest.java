package dev.kvasir.runner.file;

import static dev.kvasir.Testing.assertNames;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.kvasir.LabModel;
import dev.kvasir.internal.json.Json;
import dev.kvasir.tensor.Safetensors;
import dev.kvasir.tensor.SafetensorsException;
import dev.kvasir.tensor.Tensor;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class SafetensorsModelTest {

  private static final String INDEX = "model.safetensors.index.json";

  @TempDir Path folder;

  private static Tensor number(int value) {
    return Tensor.ofFloats(new float[] {value}, 1);
  }

  private void index(String weightMap) throws IOException {
    Files.writeString(folder.resolve(INDEX), "{\"metadata\":{\"total_size\":8},\"weight_map\":" + weightMap + "}");
  }

  private void assertInvalid(Object... named) {
    assertNames(assertThrows(SafetensorsException.class, () -> SafetensorsModel.open(folder).close()), named);
  }

  @Test
  void readsOneFileOrShards() throws IOException {
    Safetensors.write(folder.resolve("model.safetensors"), Map.of(), Map.of("a", number(1)));
    try (SafetensorsModel model = SafetensorsModel.open(folder)) {
      assertEquals(Set.of("a"), model.names());
      assertArrayEquals(new float[] {1}, model.read("a").floats());
      assertNames(assertThrows(ModelException.class, () -> model.read("b")), "\"b\"");
    }
    Safetensors.write(folder.resolve("s1"), Map.of(), Map.of("a", number(2)));
    Safetensors.write(folder.resolve("s2"), Map.of(), Map.of("b", number(3)));
    index("{\"a\":\"s1\",\"b\":\"s2\"}");
    try (SafetensorsModel model = SafetensorsModel.open(folder)) {
      assertEquals(Set.of("a", "b"), model.names());
      assertArrayEquals(new float[] {2}, model.read("a").floats());
      assertArrayEquals(new float[] {3}, model.read("b").floats());
      assertEquals(List.of(1L), model.entry("b").shape());
    }
  }

  @Test
  void refusesAnIndexThatLeadsNowhere() throws IOException {
    Safetensors.write(folder.resolve("s1"), Map.of(), Map.of("a", number(2)));
    index("{\"b\":\"s1\"}");
    assertInvalid("\"b\"", "s1");
    for (String name : List.of("../s1", "/s1", "x/s1", "", ".", "..\\\\s1", "a\\u0000b", "\\ud800")) {
      index("{\"a\":\"" + name + "\"}");
      assertInvalid(INDEX);
    }
    index("{\"a\":1}");
    assertInvalid(INDEX);
    index("[]");
    assertInvalid("weight_map");
    Files.writeString(folder.resolve(INDEX), "{");
    assertInvalid(INDEX);
    index("{\"a\":\"gone\"}");
    assertThrows(IOException.class, () -> SafetensorsModel.open(folder));
  }

  @Test
  void readsARealModel() throws Exception {
    Path lab = LabModel.folder();
    Map<String, Object> index = Json.object(Json.parse(Files.readAllBytes(lab.resolve(INDEX))), "index");
    try (SafetensorsModel model = SafetensorsModel.open(lab)) {
      assertEquals(Json.object(index.get("weight_map"), "map").keySet(), model.names());
      long bytes = 0;
      for (String name : model.names()) {
        bytes += model.read(name).size();
      }
      assertEquals(Json.object(index.get("metadata"), "metadata").get("total_size"), bytes);
      Weights bias = model.read("model.layers.3.self_attn.k_proj.bias").require(1, 256);
      assertEquals(WeightType.BF16, bias.type());
      double sum = 0;
      double magnitudes = 0;
      for (float value : bias.floats()) {
        sum += value;
        magnitudes += Math.abs(value);
      }
      // Sums that another reader found; exact, as every partial sum fits a double.
      assertEquals(2.5513153076171875, sum);
      assertEquals(31.82923126220703, magnitudes);
    }
  }
}
