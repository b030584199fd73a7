package dev.kvasir.lab.cli;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.Side;
import dev.kvasir.KvGeometry;
import dev.kvasir.calibrate.Profile;
import dev.kvasir.runner.file.Json;
import dev.kvasir.runner.TinyModel;
import dev.kvasir.lab.inspect.ChannelStatistics;
import dev.kvasir.lab.inspect.Recording;
import dev.kvasir.runner.Model;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** The commands on a small random model: what they write, what they say, their exit codes. */
class MainTest {

  @TempDir Path folder;

  @BeforeEach
  void writeModel() throws Exception {
    TinyModel.qwen2(folder, 7);
  }

  private static byte[] bytes(long seed, int count) {
    byte[] bytes = new byte[count];
    new Random(seed).nextBytes(bytes);
    return bytes;
  }

  private static String letters(long seed, int count) {
    return new Random(seed).ints(count, 'a', 'z' + 1).collect(
        StringBuilder::new, StringBuilder::appendCodePoint, StringBuilder::append).toString();
  }

  /** A folder of texts, to test on and to learn from. */
  private Path noise(String name) throws IOException {
    Path data = Files.createDirectories(folder.resolve(name));
    Files.write(data.resolve("noise_test.bin"), bytes(1, 9000));
    Files.write(data.resolve("noise_val.bin"), bytes(2, 9000));
    return data;
  }

  @Test
  void evaluateWritesItsFiles() throws Exception {
    Path data = noise("tests");
    List<String> lines = new ArrayList<>();
    for (int i = 0; i < 5; i++) {
      lines.add(Json.write(Map.of("prompt", letters(i, 50), "answer", letters(i + 9, 5), "meta", Map.of("n", i))));
    }
    Files.write(data.resolve("guess.jsonl"), lines);
    Path out = folder.resolve("report");
    String[] args = {
      "evaluate", "" + folder, "--methods=uniform-2,pattern-2", "--windows=2", "--samples", "3", "--out", "" + out,
      "--prompt=exact"
    };
    assertSays(0, "pattern-2", args);
    List<Json> rows = Json.read(out.resolve("evaluate.json")).list();
    assertEquals(List.of("f16", "uniform-2", "pattern-2"), rows.stream().map(r -> r.get("method").text()).toList());
    for (Json row : rows) {
      for (String field : List.of("bits", "bpb", "bpb_far", "kl", "top1", "cache_bytes", "us_per_token")) {
        assertTrue(Double.isFinite(row.get(field).number()), field);
        assertTrue(row.get("errors").map().containsKey(field) || field.equals("bits") || field.equals("cache_bytes"));
      }
      assertTrue(row.get("tasks").get("guess").number() >= 0);
      assertEquals(2, row.get("windows").integer());
      // The tiny model takes 1024 tokens, fewer than a window of text usually has.
      assertEquals(1024, row.get("cache_tokens").integer());
      assertEquals(3, row.get("graded").get("guess").get("instances").integer());
      assertTrue(row.get("complete").flag());
    }
    assertEquals(0, rows.get(0).get("kl").number());
    List<String> csv = Files.readAllLines(out.resolve("evaluate.csv"));
    assertEquals(4, csv.size());
    assertEquals(csv.get(0).split(",").length, csv.get(2).split(",", -1).length);
    assertTrue(Files.readString(out.resolve("index.html")).contains("pattern-2"));

    assertEquals(130, Main.run(args, new PrintStream(new ByteArrayOutputStream()), new AtomicBoolean(true)));
    rows = Json.read(out.resolve("evaluate.json")).list();
    assertEquals(3, rows.size());
    assertFalse(rows.get(0).get("complete").flag());
    assertTrue(rows.get(0).find("bpb").isEmpty());
  }

  /** What was measured after the files were last written is not lost with a program that is ended. */
  @Test
  @Timeout(60)
  void evaluateLeavesWhatItHasMeasured() throws Exception {
    Path data = noise("tests");
    Path out = folder.resolve("report");
    CountDownLatch reached = new CountDownLatch(1);
    CountDownLatch goOn = new CountDownLatch(1);
    // The last method gets no further than to say that it is at its end.
    OutputStream slow =
        new ByteArrayOutputStream() {
          @Override
          public synchronized void write(byte[] from, int offset, int length) {
            super.write(from, offset, length);
            if (toString(StandardCharsets.UTF_8).contains("uniform-2 on")) {
              reached.countDown();
              try {
                goOn.await();
              } catch (InterruptedException e) {
                throw new IllegalStateException(e);
              }
            }
          }
        };
    Stop stop = new Stop(new AtomicBoolean());
    String[] args = {
      "evaluate", "" + folder, "--methods=uniform-8,uniform-4,uniform-2", "--windows=1", "--samples=0", "--data", "" + data,
      "--out", "" + out
    };
    PrintStream said = new PrintStream(slow);
    Thread command = new Thread(() -> Main.run(args, said, said, stop));
    command.start();
    reached.await();
    assertEquals(List.of(true, true, false, false), measured(out));
    stop.ask(0);
    assertEquals(List.of(true, true, true, false), measured(out));
    goOn.countDown();
    command.join();
  }

  private static List<Boolean> measured(Path out) throws IOException {
    return Json.read(out.resolve("evaluate.json")).list().stream().map(row -> row.find("bpb").isPresent()).toList();
  }

  @Test
  @Timeout(10)
  void theEndWaitsForNoCommandThatGoesOn() {
    AtomicBoolean asked = new AtomicBoolean();
    new Stop(asked).ask(60);
    assertTrue(asked.get());
    Stop stop = new Stop(new AtomicBoolean());
    List<String> saved = new ArrayList<>();
    stop.endsWhenAsked(() -> saved.add("rest"));
    stop.ended();
    stop.ask(60);
    assertEquals(List.of(), saved);
  }

  /** Layers without codebooks are kept in 16 bits: as good as the reference, and no figure of the method. */
  @Test
  void profilesWithoutCodebooksAreNoneOfCommVq() throws Exception {
    Path data = noise("tests");
    Path profiles = Files.createDirectories(folder.resolve("profiles"));
    assertSays(0, "Profile", "calibrate", "" + folder, "--tokens=50", "--out", "" + profiles.resolve("comm-vq-2.profile"));
    Path out = folder.resolve("report");
    assertSays(0, "comm-vq-2", "evaluate", "" + folder, "--methods=comm-vq-2", "--windows=1", "--samples=0", "--data",
        "" + data, "--profiles", "" + profiles, "--out", "" + out);
    Json row = Json.read(out.resolve("evaluate.json")).list().get(1);
    assertTrue(row.get("failure").text().contains("lacks codebooks of layer 0"), row.toString());
  }

  /** A file that cannot be used costs its method, and no other. */
  @Test
  void damagedProfilesAreSaidInALine() throws Exception {
    Path data = noise("tests");
    Path profiles = Files.createDirectories(folder.resolve("profiles"));
    Path damaged = profiles.resolve("spectral.profile");
    Files.writeString(damaged, "{");
    Path out = folder.resolve("report");
    assertSays(0, "uniform-4", "evaluate", "" + folder, "--methods=uniform-4,spectral-2", "--windows=1", "--samples=0",
        "--data", "" + data, "--profiles", "" + profiles, "--out", "" + out);
    List<Json> rows = Json.read(out.resolve("evaluate.json")).list();
    assertTrue(rows.get(2).get("failure").text().contains("spectral.profile"));
    assertTrue(rows.get(1).get("complete").flag());
    String said = assertSays(1, "kvasir: ", "allocate", "" + damaged, "--bits", "3");
    assertTrue(said.contains("spectral.profile") && !said.contains("\tat "), said);
  }

  @Test
  void budgetsAreOfSomeBytes() throws Exception {
    Path text = folder.resolve("some.txt");
    Files.write(text, bytes(3, 500));
    String[] args = {"perplexity", "--model", "" + folder, "--text", "" + text, "--window=64", "--windows=1", "--budget=1K"};
    assertSays(1, "budget", args);
    args[args.length - 1] = "--budget=64M";
    assertSays(0, "perplexity ", args);
    args[args.length - 1] = "--budget=";
    assertSays(2, "64M would be some", args);
  }

  /** Beyond what a model was made for, numbers say nothing. */
  @Test
  void windowsAreOfWhatTheModelWasMadeFor() throws Exception {
    Path text = folder.resolve("some.txt");
    Files.write(text, bytes(4, 3000));
    String[] args = {"perplexity", "--model", "" + folder, "--text", "" + text, "--windows=1", "--window=2048"};
    assertSays(1, "--window 2048", args);
    assertSays(1, "--tokens is 2000", "inspect", "" + folder, "--text", "" + text, "--tokens=2000");
    args[args.length - 1] = "--window=1024";
    assertSays(0, "perplexity ", args);
  }

  /** A sample leaves no method out that could learn from the texts, and says what that took. */
  @Test
  void samplesLearn() throws Exception {
    noise("tests");
    Path out = folder.resolve("report");
    String said =
        assertSays(0, "Learned on the way: reading for codebooks ", "evaluate", "" + folder, "--sample", "--windows=1",
            "--samples=0", "--methods=comm-vq-1,spectral-2,balanced", "--out", "" + out);
    assertTrue(said.contains("key codebooks ") && said.contains("spectral ") && !said.contains("left out"), said);
    List<Json> rows = Json.read(out.resolve("evaluate.json")).list();
    assertEquals(
        List.of("f16", "comm-vq-1", "spectral-2", "balanced"), rows.stream().map(r -> r.get("method").text()).toList());
    for (Json row : rows.subList(1, 4)) {
      assertTrue(row.get("kl").number() > 0 && row.get("complete").flag(), row.get("method").text());
    }
  }

  /** GGUF's Llamas turn neighbouring channels, others the halves of a head: codebooks commute with what the model does. */
  @Test
  void codebooksTurnAsTheModelDoes() throws Exception {
    Path data = noise("texts");
    Path file = folder.resolve("llama.gguf");
    TinyModel.gguf(file, "llama", 4);
    Path out = folder.resolve("report");
    assertSays(0, "comm-vq-1", "evaluate", "" + file, "--data", "" + data, "--sample", "--windows=1", "--window=512",
        "--samples=0", "--passkeys=0", "--methods=comm-vq-1", "--out", "" + out);
    Json row = Json.read(out.resolve("evaluate.json")).list().get(1);
    assertTrue(row.get("complete").flag() && row.get("kl").number() > 0, row.toString());
  }

  @Test
  void passKeysCanBeAskedAlone() throws Exception {
    Path data = Files.createDirectories(folder.resolve("tests"));
    Files.writeString(data.resolve("letters_test.bin"), letters(1, 9000));
    Path out = folder.resolve("report");
    String[] args = {
      "evaluate", "" + folder, "--methods=uniform-2", "--windows=0", "--samples=0", "--passkeys=2", "--out", "" + out
    };
    assertSays(0, "passkey", args);
    for (Json row : Json.read(out.resolve("evaluate.json")).list()) {
      assertEquals(2, row.get("graded").get("passkey").get("instances").integer());
      assertTrue(row.find("bpb").isEmpty());
    }
    args[5] = "--passkeys=0";
    assertSays(2, "nothing to measure", args);
  }

  @Test
  void commandsSayWhatIsWrong() throws Exception {
    String model = folder.toString();
    assertSays(2, "MODEL", "evaluate");
    assertSays(2, "uniform-5", "evaluate", model, "--methods=uniform-5");
    assertSays(2, "windows", "evaluate", model, "--windows=-1");
    assertSays(2, "scored", "evaluate", model, "--scored=-1");
    assertSays(2, "loud", "evaluate", model, "--prompt=loud");
    assertSays(2, "speed", "evaluate", model, "--speed=9");
    assertSays(2, "dance", "dance");
    assertSays(1, "tests", "evaluate", model);
    assertSays(1, "nowhere", "evaluate", folder.resolve("nowhere").toString());
    Path data = Files.createDirectories(folder.resolve("tests"));
    Files.writeString(data.resolve("bad.jsonl"), "{\"prompt\": \"a\"}\n");
    assertSays(1, "answer", "evaluate", model);
    Files.writeString(data.resolve("bad.jsonl"), Json.write(Map.of("prompt", letters(1, 1020), "answer", "12345")));
    assertSays(1, "1025 tokens; the model takes 1024", "evaluate", model);
    assertSays(1, "_val.bin", "inspect", model);
    assertSays(1, "no file", "inspect", model, "--text", model + "/nothing");
    assertSays(1, "nothing.profile", "allocate", model + "/nothing.profile", "--bits", "3");
    assertSays(2, "--bits", "allocate", model);
    assertSays(2, "tokens", "bench", "--tokens", "0");
    assertSays(2, "--method", "train", model);
    assertSays(2, "uniform-2", "train", model, "--method=uniform-2");
    assertSays(1, "_val.jsonl", "train", model, "--method=comm-vq-1");
    assertSays(2, "comm-vq-1", "calibrate", model, "--method=comm-vq-1");
    assertSays(1, "_val.bin", "calibrate", model, "--method=spectral");
  }

  @Test
  void helpNamesAllCommands() {
    for (String[] args : new String[][] {{}, {"--help"}}) {
      String said = assertSays(0, "Exit codes", args);
      for (String command : List.of("evaluate", "calibrate", "train", "allocate", "search", "inspect", "bench")) {
        assertTrue(said.contains(command), command);
      }
    }
    assertSays(0, "--methods", "evaluate", "--help");
    assertSays(0, "kvasir ", "--version");
  }

  @Test
  void benchMeasures() {
    assertSays(0, "16-bit", "bench", "--tokens=600", "--seconds=0");
  }

  @Test
  void inspectDrawsTheCache() throws Exception {
    Path text = folder.resolve("some.txt");
    Files.write(text, bytes(3, 500));
    Path page = folder.resolve("pages").resolve("inspect.html");
    String said =
        assertSays(0, "widest", "inspect", folder.toString(), "--text", text.toString(), "--tokens=200", "--out",
            page.toString());
    // A header, two sides of two layers of two heads, and the place of the page.
    assertEquals(1 + 1 + 8 + 1, said.lines().count()); // what is read, a heading, two sides of two heads of two layers, the file
    String html = Files.readString(page);
    assertEquals(2 * TinyModel.LAYERS * TinyModel.KV_HEADS * TinyModel.HEAD_DIM, html.split("<rect ").length - 1);
    assertFalse(html.contains("NaN") || html.contains("src="));
  }

  @Test
  void statisticsOfChannels() throws Exception {
    Recording recording = Recording.of(Model.load(folder), 256, 1, 2, 3, 4, 5, 6, 7, 8, 9);
    assertEquals(10, recording.tokens());
    assertEquals(10, recording.sample(1).queryTokens());
    int d = TinyModel.HEAD_DIM;
    for (Side side : Side.values()) {
      ChannelStatistics found = ChannelStatistics.of(recording, 1, side, 1);
      float[] rows = recording.rows(1, side);
      double widest = 0;
      for (int c = 0; c < d; c++) {
        double low = 1e9;
        double high = -1e9;
        for (int t = 0; t < 10; t++) {
          low = Math.min(low, rows[(2 * t + 1) * d + c]);
          high = Math.max(high, rows[(2 * t + 1) * d + c]);
        }
        assertEquals(high - low, found.ranges()[c], 1e-9);
        widest = Math.max(widest, high - low);
      }
      double[] sorted = found.ranges().clone();
      java.util.Arrays.sort(sorted);
      assertEquals(widest / sorted[d / 2], found.outlierRatio(), 1e-9);
      assertTrue(found.largest() > 0 && found.tokenOverChannel() > 0);
    }
  }

  @Test
  void calibrateThenAllocate() throws Exception {
    Path text = folder.resolve("some.txt");
    Files.write(text, bytes(3, 500));
    Path profile = folder.resolve("tiny.profile");
    String[] plain = {
      "calibrate", folder.toString(), "--text", text.toString(), "--tokens=160", "--queries=16", "--out",
      profile.toString()
    };
    assertSays(0, "layer 1: alpha", plain);
    assertTrue(Profile.load(profile).keyScaling().isPresent());
    assertSays(1, "sensitivities", "allocate", profile.toString(), "--bits=4");

    Path file = folder.resolve("tensors.safetensors");
    TinyModel.writeGradients(file);
    List<String> more = new ArrayList<>(List.of(plain));
    more.add("--tensors=" + file);
    assertSays(0, "Sensitivities", more.toArray(String[]::new));
    String said = assertSays(0, "proven optimal", "allocate", profile.toString(), "--bits=6", "--separate");
    assertTrue(said.contains("layer  keys  values"));
    assertEquals(TinyModel.LAYERS, Profile.load(profile).plan().orElseThrow().layers());
  }

  /** Thresholds that were found, scaling and losses that were measured are what evaluate goes by. */
  @Test
  void searchAndCalibrateWriteWhatEvaluateRuns() throws Exception {
    Path data = Files.createDirectories(folder.resolve("tests"));
    Files.writeString(data.resolve("noise_test.bin"), letters(1, 3000));
    Files.write(data.resolve("noise_val.bin"), bytes(2, 700));
    String model = folder.toString();
    String said =
        assertSays(0, "Best at 16.00 bits or less", "search", model, "--trials=4", "--bits=16", "--out",
            "" + folder.resolve("mix-kvq.profile"));
    assertEquals(4, said.lines().takeWhile(line -> !line.startsWith("No other")).count() - 1);
    assertSays(1, "no trial kept to 2.0 bits", "search", model, "--trials=1", "--bits=2");
    said =
        assertSays(0, "values", "calibrate", model, "--tokens=200", "--queries=16", "--losses", "--out",
            "" + folder.resolve("pm-kvq.profile"));
    assertTrue(said.contains("coding keys costs"), said);
    Profile profile = Profile.load(folder.resolve("pm-kvq.profile"));
    assertEquals(TinyModel.LAYERS, profile.sensitivities().orElseThrow().layers());
    Path out = folder.resolve("report");
    Files.delete(data.resolve("noise_val.bin"));
    said =
        assertSays(0, "mix-kvq-found", "evaluate", model, "--methods=@mixkvq-thresholds,@pmkvq-scaling,@pmkvq-plans",
            "--sample", "--windows=1", "--passkeys=2", "--out=" + out);
    List<Json> rows = Json.read(out.resolve("evaluate.json")).list();
    for (Json row : rows) {
      assertTrue(row.get("complete").flag(), row.get("method").text());
      assertEquals("exact", row.get("prompt").text());
      assertTrue(row.get("perplexity").number() > 1);
      assertTrue(row.get("tasks").get("passkey").number() >= 0);
      assertTrue(row.get("by_text").get("noise").get("kl").number() >= 0);
    }
    assertTrue(rows.stream().anyMatch(row -> row.get("method").text().equals("pm-kvq-2-paper")));
    assertTrue(said.contains("pm-kvq-3-plan is left out"), said);
    String page = Files.readString(out.resolve("index.html"));
    assertTrue(page.contains("kvasir evaluate ") && page.contains("--sample"));
  }

  @Test
  void calibrateWritesTheProfileOfSpectral() throws Exception {
    Path tuning = Files.createDirectories(folder.resolve("tuning"));
    Files.write(tuning.resolve("noise_val.bin"), bytes(2, 700));
    Path profile = folder.resolve("spectral.profile");
    String said =
        assertSays(0, "Profile: " + profile, "calibrate", folder.toString(), "--method=spectral", "--tuning",
            "" + tuning, "--out", "" + profile);
    // Every layer of so small a model is measured by itself, and says so.
    KvGeometry geometry = Profile.load(profile).geometry();
    for (int layer = 1; layer <= geometry.layers(); layer++) {
      assertTrue(said.contains("layer " + layer + " of " + geometry.layers() + ": coding keys costs"), said);
    }
    assertTrue(said.contains("temper 1.00") && said.contains("at 3.0 bits"), said);
    assertEquals(geometry.layers(), Profile.load(profile).spectral(2).keyBits().size());
  }

  @Test
  void trainWritesTheProfileThatEvaluateTakes() throws Exception {
    Path data = Files.createDirectories(folder.resolve("tests"));
    Files.write(data.resolve("noise_test.bin"), bytes(1, 2000));
    Path tuning = Files.createDirectories(folder.resolve("tuning"));
    Files.write(tuning.resolve("noise_val.bin"), bytes(2, 1500));
    String task = Json.write(Map.of("prompt", letters(1, 50), "answer", letters(2, 5)));
    Files.writeString(tuning.resolve("guess_val.jsonl"), task);
    Path profile = folder.resolve("comm-vq-1.profile");
    String model = folder.toString();
    assertSays(
        0, "Profile: " + profile, "train", model, "--method=comm-vq-1", "--tuning", "" + tuning, "--out", "" + profile);
    assertTrue(Profile.load(profile).codebooks().values(1).isPresent());

    // There is nothing to learn from beside the tests: smallest cannot run, and comm-vq-1 does from its profile.
    Path out = folder.resolve("report");
    String said =
        assertSays(0, "left out", "evaluate", model, "--methods=comm-vq-1,smallest,pm-kvq-3-plan", "--windows=1",
            "--out=" + out);
    assertTrue(said.contains("pm-kvq-3-plan is left out"));
    List<Json> rows = Json.read(out.resolve("evaluate.json")).list();
    assertEquals(List.of("f16", "comm-vq-1", "smallest"), rows.stream().map(r -> r.get("method").text()).toList());
    assertTrue(rows.get(1).get("complete").flag() && rows.get(1).get("codebook_bits").number() > 0);
    assertTrue(rows.get(2).get("failure").text().contains("_val.bin"));
    assertEquals(0, rows.get(0).get("codebook_bits").number());

    assertSays(0, "smallest", "evaluate", model, "--methods=smallest", "--windows=1", "--tuning=" + tuning,
        "--out=" + out);
    assertTrue(Json.read(out.resolve("evaluate.json")).list().get(1).get("complete").flag());
  }

  static String assertSays(int code, String part, String... args) {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    int found = Main.run(args, new PrintStream(out), new AtomicBoolean());
    String said = out.toString(StandardCharsets.UTF_8);
    assertEquals(code, found, said);
    assertTrue(said.contains(part), said);
    return said;
  }
}
