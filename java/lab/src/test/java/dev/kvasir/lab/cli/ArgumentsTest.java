package dev.kvasir.lab.cli;

import static dev.kvasir.lab.cli.MainTest.assertSays;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.calibrate.Profile;
import dev.kvasir.runner.TinyModel;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What the commands say to arguments that nobody could mean, and where. */
class ArgumentsTest {

  @TempDir Path folder;
  private Path model;
  private Path text;

  @BeforeEach
  void writeModel() throws Exception {
    model = Files.createDirectory(folder.resolve("model"));
    TinyModel.qwen2(model, 7);
    text = Files.writeString(folder.resolve("text"), "The quick brown fox jumps over the lazy dog. ".repeat(9));
  }

  /** Whoever reads for hours what cannot be written then has waited in vain. */
  @Test
  void whatCannotBeWrittenIsSaidBeforeAnythingIsRead() throws Exception {
    Path inTheWay = Files.writeString(folder.resolve("file"), "");
    List<List<String>> commands =
        List.of(
            List.of("calibrate", "" + model),
            List.of("calibrate", "" + model, "--method=spectral"),
            List.of("train", "" + model, "--method=comm-vq-1"),
            List.of("search", "" + model),
            List.of("inspect", "" + model));
    for (List<String> command : commands) {
      // There is no text either, which would be said next.
      assertSays(1, model + " is there and no regular file", with(command, "--out=" + model));
      assertSays(1, inTheWay + " is there and no folder", with(command, "--out=" + inTheWay.resolve("in/it")));
    }
    assertSays(1, inTheWay + " is there and no folder", "evaluate", "" + model, "--out=" + inTheWay);
  }

  /** Whoever asks for what cannot be is told before a model is read: there is none here. */
  @Test
  void numbersThatNobodyCanMeanAreRefusedAtOnce() throws Exception {
    String none = folder.resolve("none").toString();
    List<String> calibrate = List.of("calibrate", none);
    List<String> chat = List.of("chat", "--model=" + none);
    List<String> generate = List.of("generate", "--model=" + none, "--prompt=a");
    List<String> perplexity = List.of("perplexity", "--model=" + none, "--text=" + none);
    List<String> search = List.of("search", none);
    for (String bits : List.of("NaN", "1.9", "16.1", "-1", "Infinity")) {
      assertSays(2, "--bits is " + Double.parseDouble(bits) + ", not 2..16", with(search, "--bits=" + bits));
    }
    assertSays(2, "--trials is 0, not 1 or more", with(search, "--trials=0"));
    for (int bits : new int[] {99, 17, 0}) {
      assertSays(2, "--bits is " + bits + ", not 1..16", with(calibrate, "--bits=" + bits));
    }
    assertSays(2, "--queries is 0, not 1 or more", with(calibrate, "--queries=0"));
    assertSays(2, "--tokens is 1, not 2 or more", with(calibrate, "--tokens=1"));
    assertSays(2, "--tokens is 1, not 2 or more", "inspect", none, "--tokens=1");
    for (List<String> learning : List.of(calibrate, List.of("train", none, "--method=comm-vq-1"))) {
      assertSays(2, "--steps is 0, not 1..10000", with(learning, "--steps=0"));
      assertSays(2, "--steps is 10001, not 1..10000", with(learning, "--steps=10001"));
    }
    assertSays(2, "--bits is NaN, not above 0", "allocate", none, "--bits=NaN");
    assertSays(2, "--widths is 99, not 1..16", "allocate", none, "--bits=2", "--widths=2,99");
    assertSays(2, "--seconds is Infinity, not 0 or more", "bench", "--seconds=Infinity");
    assertSays(2, "--scored is -1, not 0 or more", "evaluate", none, "--scored=-1");
    for (List<String> command : List.of(chat, generate)) {
      String[][] wrong = {
        {"--tokens=0", "--tokens is 0, not 1 or more"},
        {"--temperature=NaN", "--temperature is NaN, not 0..100"},
        {"--top-k=-1", "--top-k is -1, not 0 or more"},
        {"--top-p=0", "--top-p is 0.0, not above 0, up to 1"},
        {"--min-p=2", "--min-p is 2.0, not 0..1"},
        {"--repetition-penalty=0", "--repetition-penalty is 0.0, not 0.01..100"},
      };
      for (String[] each : wrong) {
        assertSays(2, each[1], with(command, each[0]));
      }
    }
    for (List<String> command : List.of(chat, generate, perplexity)) {
      String[][] wrong = {
        {"uniform", "NaN", "not 1, 2, 3, 4, 8 or 16"},
        {"uniform", "99", "99, not 1, 2, 3, 4, 8 or 16"},
        {"pattern", "16", "16, not 1, 2, 3, 4 or 8"},
        {"pm-kvq", "3", "3, not 2, 4, 8 or 16"},
        {"mix-kvq", "NaN", "NaN, not 2..16"},
        {"f16", "3", "f16 has 16"},
      };
      for (String[] each : wrong) {
        String[] arguments = with(with(command, "--method=" + each[0]), "--bits=" + each[1]);
        assertSays(2, "--method " + each[0] + " --bits " + Double.parseDouble(each[1]) + ": ", arguments);
        assertSays(2, each[2], arguments);
      }
      assertSays(2, "--method unifrom: no method", with(command, "--method=unifrom"));
      assertSays(2, "--budget \"-1G\" bytes", with(command, "--budget=-1G"));
    }
    assertSays(2, "--chunk is 0, not 1 or more", with(perplexity, "--chunk=0"));
    assertSays(2, "--window is 1, not 2 or more", with(perplexity, "--window=1"));
  }

  @Test
  void foldersOfProfilesAreMade() throws Exception {
    Path profile = folder.resolve("profiles").resolve("new").resolve("scaling.profile");
    assertSays(0, "Profile: " + profile, "calibrate", "" + model, "--text=" + text, "--tokens=50", "--out=" + profile);
    assertTrue(Profile.load(profile).keyScaling().isPresent());
  }

  @Test
  void aDeviceThatIsNoneIsNotTakenForTheProcessor() throws Exception {
    for (String command : List.of("evaluate", "search", "calibrate", "train")) {
      assertSays(2, "gpu", with(List.of(command, "" + model), "--backend=gpu"));
    }
  }

  /** What is not there would count as nothing to learn from, or as never learned. */
  @Test
  void foldersThatAreNamedMustBeThere() throws Exception {
    Path tests = Files.createDirectory(model.resolve("tests"));
    Files.copy(text, tests.resolve("fox_test.bin"));
    assertSays(1, "(*_test.bin) of 1024 bytes or more", "evaluate", "" + model);
    assertSays(1, "(*_test.bin) of 700 tokens or more", "evaluate", "" + model, "--window=700");
    Files.writeString(tests.resolve("fox_test.bin"), Files.readString(text).repeat(3));
    for (String command : List.of("search", "calibrate", "train", "evaluate")) {
      List<String> args = new ArrayList<>(List.of(command, "" + model, "--tuning=nowhere"));
      args.addAll(command.equals("evaluate") ? List.of() : List.of("--out=" + folder.resolve("out")));
      args.addAll(List.of("calibrate", "train").contains(command) ? List.of("--method=spectral") : List.of());
      assertSays(1, "--tuning nowhere is no folder", args.toArray(new String[0]));
    }
    assertSays(1, "--profiles nowhere is no folder", "evaluate", "" + model, "--profiles=nowhere");
  }

  @Test
  void samplesThatCannotBeReadOrToldApartAreNamed() throws Exception {
    Path tests = Files.createDirectory(model.resolve("tests"));
    Files.createDirectory(tests.resolve("folder_test.bin"));
    assertSays(1, tests + " holds neither texts", "evaluate", "" + model);
    Path task = Files.write(tests.resolve("fox.jsonl"), "{\"prompt\": \"caf\u00e9\", \"answer\": \"x\"}".getBytes(StandardCharsets.ISO_8859_1));
    assertSays(1, task + " is not in UTF-8", "evaluate", "" + model);
    Files.writeString(task, "{\"prompt\": \"caf\u00e9\", \"answer\": \"x\"}");
    Files.writeString(tests.resolve("fox_test.bin"), Files.readString(text).repeat(3));
    assertSays(1, "a text and a task have the name fox", "evaluate", "" + model);
    Files.move(task, tests.resolve("passkey.jsonl"));
    assertSays(1, "--passkeys=0", "evaluate", "" + model, "--passkeys=1");
  }

  /** Without a page every pair of thresholds is as good as any, and no layer loses anything. */
  @Test
  void whatCodingCostsIsMeasuredOnPages() throws Exception {
    Path tuning = Files.createDirectory(folder.resolve("tuning"));
    Files.writeString(tuning.resolve("short_val.bin"), "too short");
    Path profile = folder.resolve("new.profile");
    assertSays(1, "long enough for a page", "search", "" + model, "--trials=1", "--tuning=" + tuning, "--out=" + profile);
    assertSays(1, "long enough for a page", "calibrate", "" + model, "--text=" + text, "--tokens=50", "--losses",
        "--tuning=" + tuning, "--out=" + profile);
    assertFalse(Files.exists(profile));
  }

  @Test
  void filesAndNumbersThatAreWrongAreNamed() throws Exception {
    for (String command : List.of("info", "verify")) {
      assertSays(1, text + " is no saved sequence", "file", command, "" + text);
    }
    assertSays(1, folder + " is no regular file", "file", "convert", "" + folder, "" + folder.resolve("out"));
    assertSays(1, folder + " is a folder", "perplexity", "--model=" + model, "--text=" + folder);
    assertSays(1, folder + " is a folder", "inspect", "" + model, "--text=" + folder);
    assertSays(1, "--window 1025 is not 2..1024", "perplexity", "--model=" + model, "--text=" + text, "--window=1025");
    // Nobody asked for more than the model was made for.
    assertSays(1, "less than a window of 1024", "perplexity", "--model=" + model, "--text=" + text);
    assertSays(
        2, "--bits 2.0 beside uniform-4", "generate", "--model=" + model, "--prompt=a", "--method=uniform-4", "--bits=2");
    for (String bytes : List.of("-1G", "0", "")) {
      assertSays(2, "\"" + bytes + "\" bytes", "size", "--model=llama-3.1-8b", "--memory=" + bytes);
      assertSays(2, "\"" + bytes + "\" bytes", "generate", "--model=" + model, "--prompt=a", "--budget=" + bytes);
    }
    assertSays(2, "no method \"unifrom-4\"", "size", "--model=llama-3.1-8b", "--method=unifrom-4");
    assertSays(1, "10000000000", "size", "--model=llama-3.1-8b", "--context=10000000001");
  }

  @Test
  void aFileThatMustNotBeReadIsSaidToBe() throws Exception {
    Assumptions.assumeTrue(text.toFile().setReadable(false) && !Files.isReadable(text), "this user may read all");
    assertSays(1, text + " must not be read", "perplexity", "--model=" + model, "--text=" + text);
  }

  /** Figures are read by programs, and by people who compare them. */
  @Test
  void figuresHaveTheSameDigitsInAllLanguages() throws Exception {
    Path tests = Files.createDirectory(model.resolve("tests"));
    Files.writeString(tests.resolve("fox_test.bin"), Files.readString(text).repeat(3));
    Path out = folder.resolve("out");
    Locale before = Locale.getDefault();
    Locale.setDefault(Locale.forLanguageTag("ar-EG"));
    try {
      assertPlain("calibrate", "" + model, "--text=" + text, "--tokens=50", "--out=" + out.resolve("profile"));
      assertPlain("inspect", "" + model, "--text=" + text, "--tokens=50", "--out=" + out.resolve("inspect.html"));
      assertPlain("evaluate", "" + model, "--methods=uniform-2", "--windows=1", "--out=" + out);
      assertPlain("size", "--model=llama-3.1-8b", "--memory=24G");
      assertPlain("perplexity", "--model=" + model, "--text=" + text, "--window=50");
    } finally {
      Locale.setDefault(before);
    }
    for (String file : List.of("inspect.html", "index.html", "evaluate.json", "evaluate.csv")) {
      assertPlain(Files.readString(out.resolve(file)));
    }
  }

  private static void assertPlain(String command, String... args) {
    List<String> all = new ArrayList<>(List.of(command));
    all.addAll(List.of(args));
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    int code = Main.run(all.toArray(new String[0]), new PrintStream(out), new AtomicBoolean());
    String said = out.toString(StandardCharsets.UTF_8);
    assertEquals(0, code, said);
    assertPlain(said);
  }

  private static void assertPlain(String text) {
    assertTrue(text.chars().noneMatch(c -> c > 127 && Character.isDigit(c) || c == '\u066B'), text);
  }

  /** What goes to a file or another program is what was asked for. */
  @Test
  void errorsGoWhereErrorsGo() {
    ByteArrayOutputStream out = new ByteArrayOutputStream(), errors = new ByteArrayOutputStream();
    for (String[] args : new String[][] {{"size", "--model=none"}, {"file", "info", "" + folder.resolve("none")}}) {
      assertTrue(Main.run(args, new PrintStream(out), new PrintStream(errors), new Stop(new AtomicBoolean())) > 0);
    }
    assertEquals("", out.toString(StandardCharsets.UTF_8));
    assertTrue(errors.toString(StandardCharsets.UTF_8).contains("there is no file " + folder.resolve("none")));
  }

  /** As {@code | head -1} does. */
  @Test
  void whoeverHasSeenEnoughEndsTheCommand() {
    OutputStream closed =
        new OutputStream() {
          @Override
          public void write(int b) throws IOException {
            throw new IOException("Broken pipe");
          }
        };
    String[] args = {"perplexity", "--model=" + model, "--text=" + text, "--window=8", "--windows=1000000"};
    assertEquals(Main.STOPPED, Main.run(args, new PrintStream(closed), new AtomicBoolean()));
  }

  /** A model that reads question marks for letters would answer, too. */
  @Test
  void argumentsThatTheLocaleLosesAreRefused() throws Exception {
    Assumptions.assumeTrue(File.separatorChar == '/', "no shell");
    ProcessBuilder shell =
        new ProcessBuilder(
            "sh", "-c", "exec \"$0\" -cp \"$1\" \"$2\" generate --model=x --prompt=\"$(printf '\\303\\251')\"",
            System.getProperty("java.home") + "/bin/java", System.getProperty("java.class.path"), Main.class.getName());
    shell.environment().put("LC_ALL", "C");
    Process program = shell.redirectErrorStream(true).start();
    String said = new String(program.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
    assertTrue(program.waitFor(1, TimeUnit.MINUTES));
    assertEquals(2, program.exitValue(), said);
    assertTrue(said.contains("LC_ALL=C.UTF-8"), said);
  }

  private static String[] with(String[] command, String more) {
    return with(List.of(command), more);
  }

  private static String[] with(List<String> command, String more) {
    List<String> all = new ArrayList<>(command);
    all.add(more);
    return all.toArray(new String[0]);
  }
}
