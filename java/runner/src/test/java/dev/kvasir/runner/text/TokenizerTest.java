package dev.kvasir.runner.text;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.runner.file.Json;
import dev.kvasir.runner.file.ModelException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class TokenizerTest {

  private static final String[][] MERGES = {
    {"l", "o"}, {"lo", "w"}, {"e", "r"}, {"Ġ", "low"}, {"Ã", "©"}, {"w", "er"}, {"1", "2"}
  };

  @TempDir Path folder;

  /** The names of the 256 bytes: printable Latin-1 as it is, the others from U+0100 on. */
  private static Map<String, Object> vocabulary() {
    Map<String, Object> ids = new LinkedHashMap<>();
    int next = 256;
    for (int b = 0; b < 256; b++) {
      boolean shown = b > 32 && b < 127 || b > 160 && b != 173;
      ids.put(String.valueOf((char) (shown ? b : next++)), b);
    }
    for (String[] merge : MERGES) {
      ids.put(merge[0] + merge[1], ids.size());
    }
    ids.put("hidden", 299);
    return ids;
  }

  private Tokenizer tokenizer(Object preTokenizer, boolean joined, boolean wholeWords) throws Exception {
    List<Object> merges = new ArrayList<>();
    for (String[] merge : MERGES) {
      merges.add(joined ? merge[0] + " " + merge[1] : List.of(merge));
    }
    Map<String, Object> model = new LinkedHashMap<>();
    model.put("type", "BPE");
    model.put("ignore_merges", wholeWords);
    model.put("vocab", vocabulary());
    model.put("merges", merges);
    Map<String, Object> json = new LinkedHashMap<>();
    json.put("added_tokens", List.of(Map.of("id", 300, "content", "<s>", "special", true)));
    json.put("normalizer", null);
    json.put("pre_tokenizer", preTokenizer);
    json.put(
        "post_processor",
        Map.of(
            "type", "TemplateProcessing",
            "single", List.of(Map.of("SpecialToken", Map.of("id", "<s>")), Map.of("Sequence", Map.of("id", "A"))),
            "special_tokens", Map.of("<s>", Map.of("ids", List.of(300)))));
    json.put("model", model);
    Path file = folder.resolve("tokenizer.json");
    Files.writeString(file, Json.write(json));
    return Tokenizers.of(folder, 301, OptionalInt.empty());
  }

  private static final Map<String, Object> PLAIN = Map.of("type", "ByteLevel", "use_regex", false);
  private static final Map<String, Object> WORDS = Map.of("type", "ByteLevel", "add_prefix_space", false);

  @Test
  void mergesTheEarliestRuleFirst() throws Exception {
    for (boolean joined : new boolean[] {true, false}) {
      Tokenizer tokenizer = tokenizer(PLAIN, joined, false);
      // "low" + "er": "lo" comes first, then "low", then "er"; "wer" would need the w that is gone.
      assertArrayEquals(new int[] {257, 258}, tokenizer.encode("lower"));
      assertArrayEquals(new int[] {259, 258}, tokenizer.encode(" lower"));
      assertArrayEquals(new int[] {261}, tokenizer.encode("wer"));
      assertArrayEquals(new int[] {260}, tokenizer.encode("é"));
      assertArrayEquals(new int[] {256, 256, 'l'}, tokenizer.encode("lolol"));
      assertArrayEquals(new int[] {300}, tokenizer.prefix());
      assertEquals(" lower", new String(tokenizer.decode(300, 259, 258), StandardCharsets.UTF_8));
    }
  }

  @Test
  void wordsAreCutBeforeMerging() throws Exception {
    Tokenizer words = tokenizer(WORDS, false, false);
    assertArrayEquals(new int[] {257, 259, 258, '!', '!'}, words.encode("low lower!!"));
    // The last of several spaces goes with the word.
    assertArrayEquals(new int[] {' ', ' ', 259}, words.encode("   low"));
    Object split =
        Map.of(
            "type", "Sequence",
            "pretokenizers",
                List.of(
                    Map.of(
                        "type", "Split",
                        "pattern", Map.of("Regex", "\\p{N}{1,3}|o"),
                        "behavior", "Isolated",
                        "invert", false),
                    PLAIN));
    assertArrayEquals(new int[] {'l', 'o', 'w', 262}, tokenizer(split, false, false).encode("low12"));
    for (boolean alone : new boolean[] {true, false}) {
      Map<String, Object> step = Map.of("type", "Digits", "individual_digits", alone);
      Object digits = Map.of("type", "Sequence", "pretokenizers", List.of(step, WORDS));
      // The space goes with the number where that was not cut off before.
      int[] expected = alone ? new int[] {257, ' ', '1', '2', 259} : new int[] {257, ' ', 262, 259};
      assertArrayEquals(expected, tokenizer(digits, false, false).encode("low 12 low"));
    }
  }

  /** DeepSeek Coder's has tokens for those bytes' names beside its vocabulary, as texts of their own. */
  @Test
  void bytesThatAreInNoTextMayLackATokenEach() throws Exception {
    tokenizer(PLAIN, false, false);
    Path file = folder.resolve("tokenizer.json");
    String all = Files.readString(file);
    String some = all;
    for (int b = 0xC0; b < 256; b++) {
      some = b < 0xC2 || b > 0xF4 ? some.replace("\"" + (char) b + "\":" + b, "\"gone" + b + "\":" + b) : some;
    }
    assertNotEquals(all, some);
    Files.writeString(file, some);
    Tokenizer tokenizer = Tokenizers.of(folder, 301, OptionalInt.empty());
    assertArrayEquals(new int[] {257, 260, 0xF0, 0x9F, 0x98, 0x80}, tokenizer.encode("lowé😀"));
    IllegalArgumentException e =
        assertThrows(IllegalArgumentException.class, () -> tokenizer.encode(new byte[] {'l', (byte) 0xF5}));
    assertTrue(e.getMessage().contains("0xF5"), e.getMessage());
    Files.writeString(file, all.replace("\"Â\":" + 0xC2, "\"gone\":" + 0xC2));
    ModelException wrong = assertThrows(ModelException.class, () -> Tokenizers.of(folder, 301, OptionalInt.empty()));
    assertTrue(wrong.getMessage().contains("Â"), wrong.getMessage());
  }

  /** As that class does, whatever tokenizer.json says: DeepSeek's distilled models have nothing there. */
  @Test
  void llamasClassGoesByItsSettingsBeforeATextBegins() throws Exception {
    tokenizer(WORDS, false, false);
    Path file = folder.resolve("tokenizer.json");
    Path settings = folder.resolve("tokenizer_config.json");
    String llama = "\"tokenizer_class\": \"LlamaTokenizerFast\", ";
    String[][] cases = {
      {"{" + llama + "\"add_bos_token\": false, \"bos_token\": \"<s>\"}", "", ""},
      {"{" + llama + "\"bos_token\": {\"content\": \"<s>\"}}", "300", "300"},
      {"{" + llama + "\"add_bos_token\": true, \"bos_token\": null}", "300", ""},
      {"{\"tokenizer_class\": \"Qwen2Tokenizer\", \"bos_token\": \"<s>\"}", "300", ""},
    };
    for (String[] each : cases) {
      Files.writeString(settings, each[0]);
      Tokenizer processed = Tokenizers.of(folder, 301, OptionalInt.empty());
      String with = Files.readString(file);
      Files.writeString(file, with.replace("post_processor", "nothing"));
      Tokenizer bare = Tokenizers.of(folder, 301, OptionalInt.empty());
      Files.writeString(file, with);
      assertArrayEquals(numbers(each[1]), processed.prefix(), each[0]);
      assertArrayEquals(numbers(each[2]), bare.prefix(), each[0]);
    }
    Files.writeString(settings, cases[1][0]);
    ModelException e =
        assertThrows(ModelException.class, () -> Tokenizers.of(folder, 300, OptionalInt.empty()));
    assertTrue(e.getMessage().contains("300"), e.getMessage());
  }

  private static int[] numbers(String text) {
    return text.isEmpty() ? new int[0] : new int[] {Integer.parseInt(text)};
  }

  @Test
  void wholeWordsSkipTheMerges() throws Exception {
    int[] merged = {'h', 'i', 'd', 'd', 'e', 'n'};
    assertArrayEquals(merged, tokenizer(WORDS, false, false).encode("hidden"));
    assertArrayEquals(new int[] {299}, tokenizer(WORDS, false, true).encode("hidden"));
  }

  @Test
  void anyBytesSurviveARoundTrip() throws Exception {
    Random random = new Random(3);
    Tokenizer bytes = new ByteTokenizer(OptionalInt.of(256));
    for (Tokenizer tokenizer : List.of(bytes, tokenizer(PLAIN, true, false), tokenizer(WORDS, true, false))) {
      for (int i = 0; i < 200; i++) {
        byte[] text = new byte[random.nextInt(60)];
        random.nextBytes(text);
        if (i % 2 == 0) {
          text = "Lower lölow\n\t 12 slower ünder 日本 é".getBytes(StandardCharsets.UTF_8);
          text = java.util.Arrays.copyOfRange(text, random.nextInt(20), 20 + random.nextInt(text.length - 20));
        }
        assertArrayEquals(text, tokenizer.decode(tokenizer.encode(text)));
      }
    }
    assertArrayEquals(new int[] {256}, bytes.prefix());
    assertArrayEquals(new int[] {255, 0, 65}, bytes.encode(new byte[] {-1, 0, 65}));
  }

  @Test
  void otherKindsAreRefused() throws Exception {
    String[][] cases = {
      {"\"BPE\"", "\"Unigram\"", "Unigram"},
      {"\"ByteLevel\"", "\"Metaspace\"", "Metaspace"},
      {"\"l\":108,", "", "\"l\""},
      {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Lowercase\"}", "Lowercase"},
      {"\"merges\":[[\"l\",\"o\"]", "\"merges\":[[\"l\",\"x\"]", "lx"},
      {"\"merges\":[[\"l\",\"o\"]", "\"merges\":[[\"l\"]", "pair"},
      {"\"l\":108", "\"l\":-8", "-8"},
      {"\"id\":300", "\"id\":-7", "-7"},
      {"\"ids\":[300]", "\"ids\":[-6]", "-6"},
      {"\"ids\":[300]", "\"ids\":[301]", "301"},
      {"\"TemplateProcessing\"", "\"RobertaProcessing\"", "RobertaProcessing"},
      {"\"ignore_merges\"", "\"end_of_word_suffix\":\"</w>\",\"ignore_merges\"", "end_of_word_suffix"},
      {"\"ignore_merges\"", "\"continuing_subword_prefix\":\"##\",\"ignore_merges\"", "continuing_subword_prefix"},
      {"\"special\":true", "\"special\":false,\"single_word\":true", "single_word"},
    };
    Path file = folder.resolve("tokenizer.json");
    tokenizer(PLAIN, false, false);
    String good = Files.readString(file);
    for (String[] wrong : cases) {
      assertTrue(good.contains(wrong[0]), wrong[0]);
      Files.writeString(file, good.replace(wrong[0], wrong[1]));
      ModelException e = assertThrows(ModelException.class, () -> Tokenizers.of(folder, 301, OptionalInt.empty()), wrong[2]);
      assertTrue(e.getMessage().contains(wrong[2]), e.getMessage());
    }
    Files.delete(file);
    for (int bos : new int[] {-1, 260}) {
      assertThrows(ModelException.class, () -> Tokenizers.of(folder, 260, OptionalInt.of(bos)));
    }
  }

  /** Oniguruma's classes, hexadecimal digits and points that match line ends compile, and would match something else. */
  @Test
  void expressionsThatMeanSomethingElseHereAreRefused() throws Exception {
    for (String expression : List.of("[[:alpha:]]+", "[^[:^space:]]", "\\h+", "(?m:a.b)", "(?im)a.b")) {
      Object split =
          Map.of("type", "Split", "pattern", Map.of("Regex", expression), "behavior", "Isolated", "invert", false);
      ModelException e = assertThrows(ModelException.class, () -> tokenizer(split, false, false), expression);
      assertTrue(e.getMessage().contains("Split"), e.getMessage());
    }
    Object fine = Map.of("Regex", "(?i:'s)|[:;]+|[^\\r\\n\\p{L}]?\\p{L}+");
    tokenizer(Map.of("type", "Split", "pattern", fine, "behavior", "Isolated", "invert", false), false, false);
  }

  /** Java matches repeated groups by recursion; real files have none. */
  @Test
  void aTextThatAnExpressionIsTooDeepForIsRefused() throws Exception {
    Object group = Map.of("Regex", "(?:l|o|w)+");
    Object split = Map.of("type", "Split", "pattern", group, "behavior", "Isolated", "invert", false);
    Tokenizer tokenizer = tokenizer(split, false, false);
    assertArrayEquals(new int[] {257}, tokenizer.encode("low"));
    String text = "low".repeat(1_000_000);
    IllegalArgumentException e = assertThrows(IllegalArgumentException.class, () -> tokenizer.encode(text));
    assertTrue(e.getMessage().contains("(?:l|o|w)+"), e.getMessage());
  }

  /** Some added tokens take the spaces around them along. */
  @Test
  void addedTokensMayTakeSpaces() throws Exception {
    tokenizer(PLAIN, false, false);
    Path file = folder.resolve("tokenizer.json");
    String good = Files.readString(file);
    int[][] expected = {{'l', ' ', 300, ' ', 'o'}, {'l', 300, ' ', 'o'}, {'l', ' ', 300, 'o'}, {'l', 300, 'o'}};
    for (int i = 0; i < expected.length; i++) {
      String strips = "\"special\":false,\"lstrip\":" + (i % 2 == 1) + ",\"rstrip\":" + (i >= 2);
      Files.writeString(file, good.replace("\"special\":true", strips));
      Tokenizer tokenizer = Tokenizers.of(folder, 301, OptionalInt.empty());
      assertArrayEquals(expected[i], tokenizer.encode("l <s> o"));
      assertArrayEquals(new int[] {300, 300}, tokenizer.encode("<s><s>"));
      assertEquals("<s>", new String(tokenizer.decode(300), StandardCharsets.UTF_8));
    }
  }

  /** A text as long as a book: work that grew with the square of it would take minutes. */
  @Test
  void brokenTextsTakeNoLongerThanOthers() {
    byte[] broken = new byte[1 << 20];
    Arrays.fill(broken, (byte) 0xFF);
    broken[7] = 'x';
    StringBuilder valid = new StringBuilder();
    int[] rest = {0};
    assertTimeoutPreemptively(
        Duration.ofSeconds(20), () -> Utf8.read(broken, valid::append, bytes -> rest[0] += bytes.length));
    assertEquals("x", valid.toString());
    assertEquals(broken.length - 1, rest[0]);
  }

  @Test
  void manyAddedTokensAreOrderedOnce() {
    int count = 100_000;
    SpecialTokens specials = new SpecialTokens();
    assertTimeoutPreemptively(
        Duration.ofSeconds(20),
        () -> {
          for (int id = 0; id < count; id++) {
            specials.added("<" + id + ">", new SpecialTokens.Added(id, false, false, false));
            specials.added("<" + id + ">!", new SpecialTokens.Added(count + id, false, false, false));
          }
        });
    List<Object> found = new ArrayList<>();
    specials.cut("a<9>!b<9><99", found::add, token -> found.add(token.id()));
    assertEquals(List.of("a", count + 9, "b", 9, "<99"), found);
    String[] rest = new String[1];
    assertTimeoutPreemptively(
        Duration.ofSeconds(20), () -> specials.cut("<x".repeat(500_000), text -> rest[0] = text, found::add));
    assertEquals(1_000_000, rest[0].length());
  }
}
