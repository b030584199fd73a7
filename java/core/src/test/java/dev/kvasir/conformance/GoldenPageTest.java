package dev.kvasir.conformance;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.kvasir.CodecChoice;
import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.Side;
import dev.kvasir.conformance.Registry.Method;
import dev.kvasir.conformance.Registry.Width;
import java.io.IOException;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/**
 * Pages under version control: what the library writes today is, byte for byte, what it wrote when the file was made,
 * so that no change of a format goes unnoticed; and the reference decodes the files to what the library reads.
 *
 * <p>A file holds one kv head's part of a page and is named after its shape; one of the same name that ends in {@code
 * .table} holds the vectors that the page refers to, as float16. The rows in it come from {@link #rows},
 * integer arithmetic that any program can repeat. After a deliberate change of a format, write the files anew with
 *
 * <pre>    JAVA_TOOL_OPTIONS=-Dkvasir.golden.regenerate=true ./gradlew :kvasir:junit</pre>
 *
 * and review the difference.
 */
class GoldenPageTest {

  private static final String SUFFIX = ".page";
  private static final String TABLE_SUFFIX = ".table";

  @Test
  void pagesAreWhatTheyWere() throws IOException, URISyntaxException {
    Map<String, byte[]> pages = writeAll();
    if (Boolean.getBoolean("kvasir.golden.regenerate")) {
      regenerate(pages);
      return;
    }
    Path folder = Path.of(GoldenPageTest.class.getResource("/golden").toURI());
    assertEquals(pages.keySet(), namesIn(folder), "golden files and golden cases differ: see the class comment");
    for (String name : pages.keySet()) {
      assertArrayEquals(Files.readAllBytes(folder.resolve(name)), pages.get(name), name);
    }
  }

  /** Every golden case as the library writes it now; checks on the way that it reads what the reference decodes. */
  private static Map<String, byte[]> writeAll() {
    Map<String, byte[]> pages = new TreeMap<>();
    for (Width width : Registry.widths()) {
      // d = 48 leaves 1-bit key planes and groups of 32 channels partly filled.
      for (int headDim : width.bits() == 1 || width.bits() == 3 ? new int[] {32, 48} : new int[] {32}) {
        for (Side side : Side.values()) {
          if (!width.stores(side)) {
            continue;
          }
          for (Map<String, Double> options : width.reference().goldenVariants(side, headDim, width.bits())) {
            PageShape shape = new PageShape(side, headDim, width.bits(), options);
            write(width, shape, nameOf(width.codec(), shape), pages);
          }
        }
      }
    }
    return pages;
  }

  private static void write(Width width, PageShape shape, String name, Map<String, byte[]> pages) {
    CodecChoice choice = new CodecChoice(width.codec(), width.bits(), shape.options());
    KvGeometry geometry = KvGeometry.builder().layers(1).queryHeads(1).kvHeads(1).headDim(shape.headDim()).build();
    float[] rows = rows(shape.headDim());
    try (KvCache cache = KvCache.builder(geometry).method(method(width, choice)).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, rows, rows, PageShape.TOKENS);
      byte[] page = sequence.readPage(0, 0, shape.side(), 0);
      SideTable.View table = SideTable.of(sequence, 1, shape.headDim()).view(shape.side(), 0, 0);
      width.reference().check(shape, rows, page, table);
      assertArrayEquals(
          width.reference().decode(shape, page, table),
          sequence.read(0, shape.side(), 0, PageShape.TOKENS),
          shape.toString());
      pages.put(name + SUFFIX, page);
      if (table.vectors().length > 0) {
        pages.put(name + TABLE_SUFFIX, halves(table.vectors()));
      }
    }
  }

  private static Method method(Width width, CodecChoice choice) {
    return new Method(
        width.stores(Side.KEYS) ? choice : Registry.STAND_IN,
        width.stores(Side.VALUES) ? choice : Registry.STAND_IN,
        0,
        0);
  }

  private static byte[] halves(float[] vectors) {
    byte[] bytes = new byte[2 * vectors.length];
    for (int i = 0; i < vectors.length; i++) {
      int half = Half.nearest(vectors[i]);
      bytes[2 * i] = (byte) half;
      bytes[2 * i + 1] = (byte) (half >> 8);
    }
    return bytes;
  }

  /**
   * Rows [128][headDim]: multiples of 1/256 in -4 .. 4, wider in some channels; channel 5 and token 40 are constant.
   * All are float16 values.
   */
  static float[] rows(int headDim) {
    float[] rows = new float[PageShape.TOKENS * headDim];
    for (int token = 0; token < PageShape.TOKENS; token++) {
      for (int channel = 0; channel < headDim; channel++) {
        int hash = Data.hash(1, token, channel);
        float value = ((hash & 2047) - 1024) / 256f * (1 << channel % 4);
        rows[token * headDim + channel] = channel == 5 || token == 40 ? 0.75f : value;
      }
    }
    return rows;
  }

  private static String nameOf(String codec, PageShape shape) {
    StringBuilder name = new StringBuilder(codec + "-" + shape.bits() + "bit-");
    name.append(shape.side().name().toLowerCase()).append("-d").append(shape.headDim());
    new TreeMap<>(shape.options()).forEach((option, value) -> name.append("-" + option + value.intValue()));
    return name.toString();
  }

  private static TreeSet<String> namesIn(Path folder) throws IOException {
    try (Stream<Path> files = Files.list(folder)) {
      return files
          .map(file -> file.getFileName().toString())
          .filter(name -> name.endsWith(SUFFIX) || name.endsWith(TABLE_SUFFIX))
          .collect(Collectors.toCollection(TreeSet::new));
    }
  }

  /** Into the sources, seen from java/core, where Gradle runs the tests, or from the root. */
  private static void regenerate(Map<String, byte[]> pages) throws IOException {
    Path module = Files.isDirectory(Path.of("src/test/java")) ? Path.of("") : Path.of("java/core");
    Path folder = module.resolve("src/test/resources/golden");
    Files.createDirectories(folder);
    for (String stale : namesIn(folder)) {
      Files.delete(folder.resolve(stale));
    }
    for (Map.Entry<String, byte[]> page : pages.entrySet()) {
      Files.write(folder.resolve(page.getKey()), page.getValue());
    }
    System.out.println("wrote " + pages.size() + " golden pages to " + folder.toAbsolutePath());
  }
}
