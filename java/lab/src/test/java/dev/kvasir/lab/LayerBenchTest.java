package dev.kvasir.lab;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;

class LayerBenchTest {

  @Test
  void fewerBitsAreSmallerAndLessExact() {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    LayerBench.run(new PrintStream(bytes, true, StandardCharsets.UTF_8), 2000, 0.1);
    List<String[]> rows =
        bytes.toString(StandardCharsets.UTF_8).lines()
            .filter(line -> line.matches(" *\\d+-bit .*"))
            .map(line -> line.strip().split(" +"))
            .collect(Collectors.toList());
    assertEquals(6, rows.size());
    for (int i = 1; i < rows.size(); i++) {
      assertTrue(number(rows.get(i)[1]) < number(rows.get(i - 1)[1]), "bits");
      assertTrue(number(rows.get(i)[7]) > number(rows.get(i - 1)[7]), "error");
    }
  }

  private static double number(String text) {
    return Double.parseDouble(text.replace("%", ""));
  }
}
