package dev.kvasir.file;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.kvasir.AnyMethod;
import dev.kvasir.CodecChoice;
import dev.kvasir.CodecInfo;
import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.Kvasir;
import dev.kvasir.Testing;
import dev.kvasir.codebook.CommVqCodebooks;
import dev.kvasir.codebook.KeyCodebook;
import dev.kvasir.codebook.ValueCodebook;
import dev.kvasir.method.CommVq;
import dev.kvasir.method.MixKvq;
import dev.kvasir.rope.Rope;
import dev.kvasir.rope.RopePairs;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.channels.Channels;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/**
 * Sequences that version 1 of the format saved, one for each codec: restored for ever, and saved again to the same bytes.
 * They are never written anew; a codec that has none yet gets one by
 *
 * <pre>    JAVA_TOOL_OPTIONS=-Dkvasir.golden.regenerate=true ./gradlew :kvasir:junit -Ptests=GoldenSequenceTest</pre>
 */
class GoldenSequenceTest {

  private static final KvGeometry GEOMETRY =
      KvGeometry.builder().layers(1).queryHeads(2).kvHeads(1).headDim(32).build();
  private static final int TOKENS = 150;
  private static final int[] IDS = IntStream.range(0, TOKENS).toArray();

  @Test
  void sequencesOfEarlierVersionsAreRestored() throws Exception {
    Map<String, KvMethod> methods = methods();
    if (Boolean.getBoolean("kvasir.golden.regenerate")) {
      addMissing(methods);
      return;
    }
    Path folder = Path.of(GoldenSequenceTest.class.getResource("/golden-sequences").toURI());
    try (var files = Files.list(folder)) {
      assertEquals(
          methods.keySet(),
          files.map(file -> file.getFileName().toString().replace(".kv", "")).collect(Collectors.toCollection(TreeSet::new)),
          "golden files and codecs differ: see the class comment");
    }
    for (Map.Entry<String, KvMethod> method : methods.entrySet()) {
      Path file = folder.resolve(method.getKey() + ".kv");
      try (KvCache cache = cache(method.getValue());
          KvSequence restored = cache.restore(file)) {
        assertEquals(TOKENS, restored.length());
        assertArrayEquals(IDS, KvFile.tokens(file));
        assertArrayEquals(Files.readAllBytes(file), bytes(restored), method.getKey() + " is saved otherwise than before");
        restored.attend(0, new float[64], new float[64]);
      }
    }
  }

  private static Map<String, KvMethod> methods() {
    Map<String, KvMethod> methods = new TreeMap<>();
    for (CodecInfo codec : Kvasir.codecs()) {
      int bits = codec.bits().contains(2) ? 2 : codec.bits().iterator().next();
      KvMethod plain = new AnyMethod(CodecChoice.of(codec.name(), bits), 3, 4);
      methods.put(
          codec.name(),
          switch (codec.name()) {
            case "tiered" -> MixKvq.budget(2.7);
            case "commvq" -> commVq();
            default -> plain;
          });
    }
    return methods;
  }

  private static CommVq commVq() {
    Random random = new Random(5);
    CommVqCodebooks codebooks =
        CommVqCodebooks.builder(GEOMETRY)
            .keys(0, new KeyCodebook(1, 32, RopePairs.HALVES, 2, 16, Testing.gaussian(random, 2 * 16 * 32)))
            .values(0, new ValueCodebook(32, 32, Testing.gaussian(random, 32 * 32), null))
            .build();
    return CommVq.of(codebooks, Rope.plain(RopePairs.HALVES, 10000, 32));
  }

  private static KvCache cache(KvMethod method) {
    return Testing.cache(GEOMETRY).method(method).model(ModelFingerprint.of(new byte[] {1})).build();
  }

  private static byte[] bytes(KvSequence sequence) throws IOException {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    sequence.save(Channels.newChannel(out), FileOptions.defaults().tokens(IDS).salt(new byte[] {2}));
    return out.toByteArray();
  }

  private static void addMissing(Map<String, KvMethod> methods) throws IOException {
    Path module = Files.isDirectory(Path.of("src/test/java")) ? Path.of("") : Path.of("java/core");
    Path folder = Files.createDirectories(module.resolve("src/test/resources/golden-sequences"));
    for (Map.Entry<String, KvMethod> method : methods.entrySet()) {
      Path file = folder.resolve(method.getKey() + ".kv");
      if (Files.exists(file)) {
        continue;
      }
      Random random = new Random(6);
      try (KvCache cache = cache(method.getValue());
          KvSequence sequence = cache.newSequence()) {
        float[] rows = Testing.gaussian(random, 2 * TOKENS * 32);
        sequence.append(0, rows, java.util.Arrays.copyOfRange(rows, TOKENS * 32, 2 * TOKENS * 32), TOKENS);
        sequence.attend(0, Testing.gaussian(random, 64), new float[64]);
        Files.write(file, bytes(sequence));
      }
      System.out.println("wrote " + file.toAbsolutePath());
    }
  }
}
