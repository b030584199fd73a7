package dev.kvasir.runner.file;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.kvasir.ChildJvm;
import dev.kvasir.runner.GgufWriter;
import dev.kvasir.tensor.Safetensors;
import dev.kvasir.tensor.Tensor;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Models are longer than heaps: what a JVM counts against its own size must not hold their weights. */
class LargeWeightsTest {

  private static final int COUNT = 1 << 24;

  @TempDir Path folder;

  /** Reads the tensor of both files, each twice as long as the heap. */
  public static final class Program {
    public static void main(String[] args) throws Exception {
      try (SafetensorsModel folder = SafetensorsModel.open(Path.of(args[0]));
          Gguf file = Gguf.open(Path.of(args[1]), true)) {
        for (WeightFile each : new WeightFile[] {folder, file}) {
          System.out.println(each.read("a").bytes().get(4 * COUNT - 1));
        }
      }
    }
  }

  @Test
  void weightsMayBeLongerThanTheHeap() throws Exception {
    float[] values = new float[COUNT];
    values[COUNT - 1] = 1;
    Safetensors.write(folder.resolve("model.safetensors"), Map.of(), Map.of("a", Tensor.ofFloats(values, COUNT)));
    Path gguf = folder.resolve("a.gguf");
    GgufWriter out = new GgufWriter();
    out.floats("a", values, List.of((long) COUNT));
    out.write(gguf);
    ChildJvm.Outcome outcome =
        new ChildJvm().with("-Xmx32m").withLibrary().run(Program.class, folder.toString(), gguf.toString());
    assertEquals("63\n63\n", outcome.output());
  }
}
