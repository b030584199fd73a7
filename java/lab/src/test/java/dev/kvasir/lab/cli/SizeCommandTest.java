package dev.kvasir.lab.cli;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.method.Uniform;
import dev.kvasir.runner.Model;
import dev.kvasir.runner.TinyModel;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The command that sizes caches, and what the program says to those who ask it wrongly. */
class SizeCommandTest {

  @TempDir Path folder;

  private record Said(int code, String text) {}

  private static Said run(String... args) {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    int code = Main.run(args, new PrintStream(bytes, true, StandardCharsets.UTF_8), new AtomicBoolean());
    return new Said(code, bytes.toString(StandardCharsets.UTF_8));
  }

  private static void assertSays(int code, String part, String... args) {
    Said said = run(args);
    assertEquals(code, said.code(), said::text);
    assertTrue(said.text().contains(part), () -> "no '" + part + "' in: " + said.text());
  }

  /** What stands in the column of bytes. */
  private static long bytes(String text, String method) {
    return text.lines()
        .filter(line -> line.startsWith(method + " "))
        .mapToLong(line -> Long.parseLong(line.strip().split(" +")[1]))
        .findFirst()
        .orElseThrow(() -> new AssertionError(method + " is not in: " + text));
  }

  @Test
  void sizesAModelByItsName() {
    Said said = run("size", "--model", "llama-3.1-8b", "--context", "32768", "--sequences", "64");
    assertEquals(0, said.code(), said::text);
    assertEquals(64L * 32768 * 131072, bytes(said.text(), "f16"));
    assertTrue(bytes(said.text(), "uniform-2") < bytes(said.text(), "f16") / 6, said::text);
  }

  @Test
  void saysWhatACacheOfAFileThenHolds() throws Exception {
    TinyModel.qwen2(folder, 7);
    KvGeometry geometry = Model.load(folder).geometry();
    Said said = run("size", "--model", "" + folder, "--context", "500", "--written", "0", "--method", "uniform-2");
    try (KvCache cache = KvCache.builder(geometry).method(Uniform.bits(2)).build();
        KvSequence sequence = cache.newSequence()) {
      for (int layer = 0; layer < geometry.layers(); layer++) {
        float[] rows = new float[500 * geometry.rowSize(layer)];
        sequence.append(layer, rows, rows, 500);
      }
      assertEquals(cache.stats().bytes(), bytes(said.text(), "uniform-2"));
    }
  }

  @Test
  void saysHowManyFit() {
    // 128 KiB a token: 8192 of them are a GiB.
    assertSays(0, "      24\n", "size", "--model=llama-3.1-8b", "--method=f16", "--memory=24G");
  }

  @Test
  void leavesMethodsOutThatAModelCannotHave() {
    assertSays(0, "not for this model", "size", "--model", "deepseek-v3", "--method", "uniform-4,pattern-2");
  }

  @Test
  void knownModelsAreShapesThatCachesTake() {
    List<String> names = run("size", "--list").text().lines().toList();
    assertTrue(names.contains("llama-3.1-8b"));
    for (String name : names) {
      Said said = run("size", "--model", name, "--method", "uniform-4", "--context", "200");
      assertEquals(0, said.code(), said::text);
      assertFalse(said.text().contains("not for this model"), said::text);
    }
  }

  @Test
  void namesWhatMayHaveBeenMeant() {
    assertSays(2, "llama-3.1-8b", "size", "--model", "lama-3.1-8b");
    assertSays(2, "--context", "size", "--model", "llama-3.1-8b", "--contxt", "5");
    assertSays(2, "size", "siz", "--model", "llama-3.1-8b");
    assertSays(2, "--model", "size");
  }

  @Test
  void completesCommandsAndOptions() {
    Said said = run("completion");
    assertEquals(0, said.code());
    for (String part : List.of("complete -F", "size", "--sequences", "llama-3.1-8b", "--method", "uniform")) {
      assertTrue(said.text().contains(part), part);
    }
  }
}
