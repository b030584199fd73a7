package dev.kvasir.runner.text;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.runner.GgufWriter;
import dev.kvasir.runner.file.Gguf;
import dev.kvasir.runner.file.Json;
import dev.kvasir.runner.file.ModelException;
import dev.kvasir.runner.text.ChatTemplate.Message;
import dev.kvasir.runner.text.ChatTemplate.Role;
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

/** SentencePiece's BPE from both kinds of files, GGUF's byte-level BPE, and the templates on top. */
class SentencePieceTest {

  @TempDir Path folder;

  /** After three special tokens and 256 bytes; later pieces have lower scores. */
  private static final List<String> PIECES =
      List.of("▁", "l", "o", "w", "e", "r", "lo", "er", "low", "▁low", "wer", "ä", "▁▁");

  private static final int MARK = 259 + PIECES.size();

  private static int id(String piece) {
    return 259 + PIECES.indexOf(piece);
  }

  private static int bytes(int b) {
    return 3 + b;
  }

  private static GgufWriter file() {
    return file(3);
  }

  /** With more tokens of a type after the mark: 3 is a control token, 1 a piece. */
  private static GgufWriter file(int type, String... more) {
    List<String> tokens = new ArrayList<>(List.of("<unk>", "<s>", "</s>"));
    for (int b = 0; b < 256; b++) {
      tokens.add(String.format("<0x%02X>", b));
    }
    tokens.addAll(PIECES);
    tokens.add("[mark]");
    tokens.addAll(List.of(more));
    float[] scores = new float[tokens.size()];
    int[] types = new int[tokens.size()];
    for (int i = 0; i < types.length; i++) {
      types[i] = i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : i < MARK ? 1 : i == MARK ? 4 : type;
      scores[i] = i < 259 ? 0 : 258 - i;
    }
    GgufWriter out = new GgufWriter();
    out.text("tokenizer.ggml.model", "llama");
    out.texts("tokenizer.ggml.tokens", tokens);
    out.numbers("tokenizer.ggml.scores", scores);
    out.integers("tokenizer.ggml.token_type", types);
    out.integer("tokenizer.ggml.bos_token_id", 1);
    return out;
  }

  private Tokenizer fromGguf(GgufWriter out) throws Exception {
    Path file = folder.resolve("vocabulary.gguf");
    out.write(file);
    try (Gguf opened = Gguf.open(file)) {
      return Tokenizers.of(opened);
    }
  }

  private Tokenizer fromJson() throws Exception {
    return fromJson(json());
  }

  private Tokenizer fromJson(Map<String, Object> json) throws Exception {
    Files.writeString(folder.resolve("tokenizer.json"), Json.write(json));
    return Tokenizers.of(folder, 300, OptionalInt.empty());
  }

  private static Map<String, Object> json() {
    Map<String, Object> vocabulary = new LinkedHashMap<>(Map.of("<unk>", 0, "<s>", 1, "</s>", 2));
    for (int b = 0; b < 256; b++) {
      vocabulary.put(String.format("<0x%02X>", b), 3 + b);
    }
    PIECES.forEach(piece -> vocabulary.put(piece, id(piece)));
    Map<String, Object> model = new LinkedHashMap<>();
    model.put("type", "BPE");
    model.put("byte_fallback", true);
    model.put("unk_token", "<unk>");
    model.put("vocab", vocabulary);
    model.put("merges", List.of("l o", "e r", "lo w", "▁ low", "▁lo w", "w er", "▁ ▁"));
    vocabulary.put("▁lo", 900);
    Map<String, Object> json = new LinkedHashMap<>();
    json.put(
        "added_tokens",
        List.of(
            Map.of("id", 1, "content", "<s>", "special", true),
            Map.of("id", 2, "content", "</s>", "special", true),
            Map.of("id", 272, "content", "[mark]", "special", false)));
    json.put(
        "normalizer",
        Map.of(
            "type", "Sequence",
            "normalizers",
                List.of(
                    Map.of("type", "Prepend", "prepend", "▁"),
                    Map.of("type", "Replace", "pattern", Map.of("String", " "), "content", "▁"))));
    json.put("model", model);
    json.put(
        "post_processor",
        Map.of(
            "type", "TemplateProcessing",
            "single", List.of(Map.of("SpecialToken", Map.of("id", "<s>")), Map.of("Sequence", Map.of("id", "A"))),
            "special_tokens", Map.of("<s>", Map.of("ids", List.of(1)))));
    return json;
  }

  @Test
  void bothFilesGiveTheSameTokens() throws Exception {
    for (Tokenizer tokenizer : List.of(fromGguf(file()), fromJson())) {
      assertArrayEquals(new int[] {1}, tokenizer.prefix());
      assertArrayEquals(new int[] {id("▁low"), id("er")}, tokenizer.encode("lower"));
      // Without a space before it, "low" is merged before "wer" can be.
      assertArrayEquals(new int[] {id("▁low"), id("▁low"), id("er")}, tokenizer.encode("low lower"));
      assertArrayEquals(new int[] {id("▁"), id("wer")}, tokenizer.encode("wer"));
      assertArrayEquals(new int[] {id("▁"), id("ä")}, tokenizer.encode("ä"));
      // What is no piece is written as bytes: U+00FC is C3 BC.
      assertArrayEquals(new int[] {id("▁"), bytes(0xC3), bytes(0xBC), id("l")}, tokenizer.encode("ül"));
      assertArrayEquals(new int[] {}, tokenizer.encode(""));
      assertEquals(OptionalInt.of(2), tokenizer.special("</s>"));
      assertTrue(tokenizer.special("<x>").isEmpty());
      assertEquals(" low[mark]", new String(tokenizer.decode(1, id("▁low"), 2, 272), StandardCharsets.UTF_8));
    }
  }

  /** llama.cpp begins anew after every token that is never cut; normalizers do after those that they do not see. */
  @Test
  void whatFollowsAnAddedTokenBeginsAnew() throws Exception {
    int[] anew = {id("▁"), id("l"), MARK, id("▁"), id("o")};
    assertArrayEquals(anew, fromGguf(file()).encode("l[mark]o"));
    assertArrayEquals(new int[] {id("▁"), id("l"), MARK, id("o")}, fromJson().encode("l[mark]o"));
    Map<String, Object> json = json();
    json.put("added_tokens", List.of(Map.of("id", MARK, "content", "[mark]", "special", false, "normalized", false)));
    assertArrayEquals(anew, fromJson(json).encode("l[mark]o"));
  }

  @Test
  void stepsThatDoSomethingElseAreRefused() throws Exception {
    fromJson();
    Path file = folder.resolve("tokenizer.json");
    String good = Files.readString(file);
    String[][] cases = {
      {"\"content\":\"▁\"", "\"content\":\"_\"", "Replace"},
      {"{\"String\":\" \"}", "{\"String\":\"``\"}", "Replace"},
      {"{\"String\":\" \"}", "{\"Regex\":\" {2,}\"}", "Replace"},
      {"\"prepend\":\"▁\"", "\"prepend\":\"_\"", "Prepend"},
    };
    for (String[] wrong : cases) {
      assertTrue(good.contains(wrong[0]), wrong[0]);
      Files.writeString(file, good.replace(wrong[0], wrong[1]));
      ModelException e = assertThrows(ModelException.class, () -> Tokenizers.of(folder, 300, OptionalInt.empty()));
      assertTrue(e.getMessage().contains(wrong[2]), e.getMessage());
    }
    Map<String, Object> json = json();
    json.remove("normalizer"); // then nothing replaces spaces
    assertThrows(ModelException.class, () -> fromJson(json));
    json.put("pre_tokenizer", Map.of("type", "Metaspace", "replacement", "_", "prepend_scheme", "always"));
    ModelException e = assertThrows(ModelException.class, () -> fromJson(json));
    assertTrue(e.getMessage().contains("Metaspace"), e.getMessage());
  }

  @Test
  void textsSurviveARoundTripBehindTheirSpace() throws Exception {
    Random random = new Random(3);
    for (Tokenizer tokenizer : List.of(fromGguf(file()), fromJson())) {
      for (int i = 0; i < 200; i++) {
        byte[] text = new byte[1 + random.nextInt(60)];
        random.nextBytes(text);
        if (i % 2 == 0) {
          text = "lower  lölow 12 slower ünder 日本 é \uD83D\uDE00".getBytes(StandardCharsets.UTF_8);
          text = Arrays.copyOfRange(text, random.nextInt(20), 20 + random.nextInt(text.length - 20));
        }
        byte[] back = tokenizer.decode(tokenizer.encode(text));
        int space = back.length - text.length;
        assertTrue(space == 0 || space == 1 && back[0] == ' ', "a space, or a broken character first");
        assertArrayEquals(text, Arrays.copyOfRange(back, space, back.length));
      }
    }
  }

  @Test
  void withoutASpaceWhereTheFileSaysSo() throws Exception {
    GgufWriter out = file();
    out.flag("tokenizer.ggml.add_space_prefix", false);
    out.flag("tokenizer.ggml.add_bos_token", false);
    Tokenizer tokenizer = fromGguf(out);
    assertArrayEquals(new int[] {id("low"), id("er")}, tokenizer.encode("lower"));
    assertArrayEquals(new int[] {}, tokenizer.prefix());
  }

  /** Metaspace's mark stands before a text that begins with none; a normalizer's before every one. */
  @Test
  void aStepThatReplacesSpaces() throws Exception {
    assertArrayEquals(new int[] {id("▁"), id("▁low")}, fromJson().encode(" low"));
    Map<String, Object> json = json();
    json.remove("normalizer");
    Map<String, Object> step = new LinkedHashMap<>(Map.of("type", "Metaspace", "replacement", "▁", "split", false));
    json.put("pre_tokenizer", step);
    for (String scheme : List.of("always", "first")) {
      step.put("prepend_scheme", scheme);
      Tokenizer tokenizer = fromJson(json);
      assertArrayEquals(new int[] {id("▁low")}, tokenizer.encode("low"));
      assertArrayEquals(new int[] {id("▁low")}, tokenizer.encode(" low"));
      assertArrayEquals(new int[] {id("▁low")}, tokenizer.encode("▁low"));
      assertArrayEquals(new int[] {id("▁low"), id("▁▁"), id("er")}, tokenizer.encode("low  er"));
      // The first is that of the text; always, what follows a token that is never cut begins anew.
      boolean first = scheme.equals("first");
      assertArrayEquals(new int[] {MARK, id(first ? "low" : "▁low")}, tokenizer.encode("[mark]low"));
      assertArrayEquals(new int[] {id("▁low"), MARK, id(first ? "low" : "▁low")}, tokenizer.encode("low[mark]low"));
      assertArrayEquals(new int[] {id("▁low"), MARK, id("▁low")}, tokenizer.encode("low[mark] low"));
    }
    step.put("prepend_scheme", "never");
    assertArrayEquals(new int[] {id("low")}, fromJson(json).encode("low"));
    step.remove("prepend_scheme");
    assertArrayEquals(new int[] {id("▁low")}, fromJson(json).encode("low"));
    step.put("add_prefix_space", false);
    assertArrayEquals(new int[] {id("low")}, fromJson(json).encode("low"));
    step.put("add_prefix_space", true);
    step.remove("split"); // true where nothing is said: nothing is merged with the mark of the next word
    assertArrayEquals(new int[] {id("▁low"), id("▁"), id("▁"), id("er")}, fromJson(json).encode("low  er"));
  }

  /** Every way to cut a piece is tried: of a long one that would take minutes. */
  @Test
  void aPieceAsLongAsABookIsRefused() {
    GgufWriter out = file(1, "l".repeat(200_000));
    ModelException e =
        assertTimeoutPreemptively(
            Duration.ofSeconds(20), () -> assertThrows(ModelException.class, () -> fromGguf(out)));
    assertTrue(e.getMessage().contains("200000"), e.getMessage());
  }

  private static List<String> byteNames() {
    List<String> tokens = new ArrayList<>();
    int next = 256;
    for (int b = 0; b < 256; b++) {
      boolean shown = b > 32 && b < 127 || b > 160 && b != 173;
      tokens.add(String.valueOf((char) (shown ? b : next++)));
    }
    return tokens;
  }

  /** What can be merged is, but where a word ends. */
  @Test
  void waysToCutWordsHaveNames() throws Exception {
    List<String> tokens = byteNames();
    tokens.addAll(List.of("!l", "Ġ!", "12", "ĊĊ", "Ġl", "Ġ!ĊĊ"));
    GgufWriter out = new GgufWriter();
    out.text("tokenizer.ggml.model", "gpt2");
    out.texts("tokenizer.ggml.tokens", tokens);
    out.texts("tokenizer.ggml.merges", List.of("! l", "Ġ !", "1 2", "Ċ Ċ", "Ġ l", "Ġ! ĊĊ"));
    Map<String, List<String>> named =
        Map.of(
            "!l Ġ!ĊĊ Ġl 12", List.of("llama-bpe", "midm-2.0", "pixtral", "deepseek-v3"),
            "!l Ġ!ĊĊ Ġl 1 2", List.of("qwen2", "megrez"),
            "!l Ġ! ĊĊ Ġl 1 2", List.of("seed-coder"),
            "! l Ġ! ĊĊ Ġl 1 2", List.of("smollm", "minerva-7b", "refact", "starcoder"),
            "! l Ġ! ĊĊ Ġl 12", List.of("gpt-2", "a.x-4.0", "mellum", "trillion"),
            "! l Ġ! Ċ Ċ Ġl 1 2", List.of("deepseek-coder"));
    for (Map.Entry<String, List<String>> each : named.entrySet()) {
      int[] expected = Arrays.stream(each.getKey().split(" ")).mapToInt(tokens::indexOf).toArray();
      for (String name : each.getValue()) {
        out.text("tokenizer.ggml.pre", name);
        assertArrayEquals(expected, fromGguf(out).encode("!l !\n\n l12"), name);
      }
    }
  }

  @Test
  void byteLevelVocabulariesOfGguf() throws Exception {
    List<String> tokens = byteNames();
    tokens.addAll(List.of("lo", "low", "Ġlow", "12", "<|im_end|>", "Ġ!", "wL", "Ow", "Ċ/"));
    int[] types = new int[tokens.size()];
    Arrays.fill(types, 1);
    types[260] = 3;
    GgufWriter out = new GgufWriter();
    out.text("tokenizer.ggml.model", "gpt2");
    out.text("tokenizer.ggml.pre", "qwen2");
    out.texts("tokenizer.ggml.tokens", tokens);
    out.integers("tokenizer.ggml.token_type", types);
    out.texts("tokenizer.ggml.merges", List.of("l o", "lo w", "Ġ low", "1 2", "Ġ !", "w L", "Ċ /"));
    Tokenizer qwen = fromGguf(out);
    assertArrayEquals(new int[] {257, 258, '1', '2'}, qwen.encode("low low12")); // digits stand alone
    assertEquals(OptionalInt.of(260), qwen.special("<|im_end|>"));
    assertArrayEquals(new int[] {}, qwen.prefix());
    out.text("tokenizer.ggml.pre", "llama-bpe");
    assertArrayEquals(new int[] {257, 258, 259}, fromGguf(out).encode("low low12")); // up to three together
    assertArrayEquals(new int[] {262, 'o', 'w'}, fromGguf(out).encode("wLow"));
    assertArrayEquals(new int[] {'!', '\n', '/'}, fromGguf(out).encode("!\n/"));
    out.integer("tokenizer.ggml.bos_token_id", 260);
    for (String name : List.of("llama-bpe", "falcon3", "tekken")) { // words that are tokens are those, behind BOS
      out.text("tokenizer.ggml.pre", name);
      assertArrayEquals(new int[] {263}, fromGguf(out).encode("Ow"), name);
      assertArrayEquals(new int[] {260}, fromGguf(out).prefix(), name);
    }
    out.remove("tokenizer.ggml.bos_token_id");
    assertArrayEquals(new int[] {'w', 'L', 'o', 'w', '1', '2', 'w'}, fromGguf(out).encode("wLow12w")); // cut at capitals
    assertArrayEquals(new int[] {'!', 264}, fromGguf(out).encode("!\n/"));
    out.text("tokenizer.ggml.pre", "gpt-2");
    assertArrayEquals(new int[] {257, 261, '3', '4', 259}, fromGguf(out).encode("low !3412"));
    out.text("tokenizer.ggml.pre", "smollm");
    assertArrayEquals(new int[] {257, 261, '1', '2'}, fromGguf(out).encode("low !12")); // digits stand alone
    // llama.cpp's default cuts punctuation off first, and numbers after every third digit.
    int[] cut = {257, ' ', '!', '3', '4', '1', '2', ' ', 258, '\n', '\n', 257};
    out.text("tokenizer.ggml.pre", "default");
    assertArrayEquals(cut, fromGguf(out).encode("low !3412  low\n\nlow"));
    out.remove("tokenizer.ggml.pre");
    assertArrayEquals(cut, fromGguf(out).encode("low !3412  low\n\nlow"));
    out.text("tokenizer.ggml.pre", "falcon");
    assertTrue(assertThrows(ModelException.class, () -> fromGguf(out)).getMessage().contains("falcon"));
  }

  /** Qwen's chat models name the end of a turn alone, and end texts with another token; a word may look like one. */
  @Test
  void controlTokensThatEndATextAreKnownByName() throws Exception {
    Path file = folder.resolve("ends.gguf");
    file(3, "<|im_end|>", "<|fim_pad|>", "<|endoftext|>").write(file);
    try (Gguf opened = Gguf.open(file)) {
      assertEquals(List.of(2, MARK + 1, MARK + 3), Tokenizers.ends(opened));
    }
    file(1, "<|im_end|>").write(file);
    try (Gguf opened = Gguf.open(file)) {
      assertEquals(List.of(2), Tokenizers.ends(opened));
    }
    GgufWriter untold = file();
    untold.remove("tokenizer.ggml.token_type");
    untold.write(file);
    try (Gguf opened = Gguf.open(file)) {
      assertEquals(List.of(), Tokenizers.ends(opened));
    }
  }

  @Test
  void conversationsAreWrittenAsTheFamilyWants() throws Exception {
    Tokenizer tokenizer = fromGguf(file());
    String zephyr = "{{ '<|user|>\n' + message['content'] + eos_token }} {{ '<|assistant|>' }}";
    ChatTemplate template = ChatTemplate.of(zephyr, tokenizer, "it");
    assertEquals(ChatTemplate.Family.ZEPHYR, template.family());
    assertEquals(2, template.end());
    List<Message> messages = List.of(new Message(Role.SYSTEM, "low"), new Message(Role.USER, "lower"));
    int[] tokens = template.encode(messages, true);
    assertEquals(1, tokens[0]);
    assertEquals(2, Arrays.stream(tokens).filter(token -> token == 2).count());
    assertEquals(
        " <|system|>\nlow \n<|user|>\nlower \n<|assistant|>\n",
        new String(tokenizer.decode(tokens), StandardCharsets.UTF_8));
    assertEquals(0, Arrays.stream(template.encode(messages, false)).filter(token -> token == 1).count());
    ChatTemplate llama2 = ChatTemplate.of("[INST] <<SYS>>", tokenizer, "it");
    assertEquals(
        " [INST] <<SYS>>\nlow\n<</SYS>>\n\nlower [/INST]",
        new String(tokenizer.decode(llama2.encode(messages, true)), StandardCharsets.UTF_8));
    ChatTemplate mistral = ChatTemplate.of("if loop.first and system_message is defined [INST]", tokenizer, "it");
    assertEquals(
        " [INST] low\n\nlower [/INST]",
        new String(tokenizer.decode(mistral.encode(messages, true)), StandardCharsets.UTF_8));
    for (ChatTemplate each : List.of(llama2, mistral)) {
      Message system = messages.get(0);
      for (List<Message> lost : List.of(List.of(system), List.of(system, system, messages.get(1)))) {
        assertThrows(ModelException.class, () -> each.encode(lost, true), each.family() + " " + lost);
      }
    }
    for (String wrong : List.of("<start_of_turn>", "<|im_start|>", "<|start_header_id|>")) {
      assertThrows(ModelException.class, () -> ChatTemplate.of(wrong, tokenizer, "it"), wrong);
    }
    assertThrows(ModelException.class, () -> ChatTemplate.of(null, tokenizer, "it"));
  }

  /** As mistral-common does: the marks' tokens, and texts of their own between them. */
  @Test
  void marksThatAreTokensAreWrittenAsThose() throws Exception {
    List<Message> messages = List.of(new Message(Role.SYSTEM, "low"), new Message(Role.USER, "lower"));
    Tokenizer third = fromGguf(file(3, "[INST]", "[/INST]"));
    assertArrayEquals(
        joined(new int[] {1, MARK + 1}, third.encode("low\n\nlower"), new int[] {MARK + 2}),
        ChatTemplate.of("if loop.last and system_message is defined [INST]", third, "it").encode(messages, true));
    Tokenizer seventh = fromGguf(file(3, "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"));
    int[] marks = {MARK + 4, MARK + 1};
    assertArrayEquals(
        joined(new int[] {1, MARK + 3}, seventh.encode("low"), marks, seventh.encode("lower"), new int[] {MARK + 2}),
        ChatTemplate.of("[SYSTEM_PROMPT] [INST]", seventh, "it").encode(messages, true));
  }

  @Test
  void turnsOfChatMlAreThoseOfTheWhole() throws Exception {
    GgufWriter out = file(3, "<|im_start|>", "<|im_end|>");
    out.flag("tokenizer.ggml.add_space_prefix", false);
    Tokenizer tokenizer = fromGguf(out);
    ChatTemplate template = ChatTemplate.of("<|im_start|>", tokenizer, "it");
    Message asked = new Message(Role.USER, "low");
    Message answered = new Message(Role.ASSISTANT, "wer");
    assertArrayEquals(
        template.encode(List.of(asked, answered, asked), true),
        joined(
            template.encode(List.of(asked), true),
            tokenizer.encode("wer"),
            new int[] {template.end()},
            template.encode(List.of(asked), false)));
    // The model goes on without a word.
    assertArrayEquals(
        template.encode(List.of(asked, answered), true),
        joined(
            template.encode(List.of(asked), true),
            tokenizer.encode("wer"),
            new int[] {template.end()},
            template.encode(List.of(), false)));
  }

  private static int[] joined(int[]... parts) {
    return Arrays.stream(parts).flatMapToInt(Arrays::stream).toArray();
  }
}
