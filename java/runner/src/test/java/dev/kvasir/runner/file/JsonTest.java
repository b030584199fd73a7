package dev.kvasir.runner.file;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.RandomAccessFile;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class JsonTest {

  @Test
  void readsWhatItWrites() {
    String text = "{\"a\":[1,-2.5,1.0E-7,true,false,null,\"q\\\"\\\\\\u0007\\ud83d\\ude00\"],\"b\":{},\"c\":[]}";
    assertEquals(text, Json.parse(text, "text").toString());
    assertEquals("[null,null,3]", Json.write(List.of(Double.NaN, Double.POSITIVE_INFINITY, 3.0)));
    Json json = Json.parse(" { \"n\" : 12 , \"s\":\"\\u00e9\\n\", \"l\":[ 1 , 2 ], \"f\":true, \"z\":null } ", "text");
    assertEquals(12, json.get("n").integer());
    assertEquals("é\n", json.get("s").text());
    assertEquals(2f, json.get("l").floats()[1]);
    assertTrue(json.get("f").flag());
    assertTrue(json.find("z").isEmpty());
    assertEquals(Map.of(), Json.parse("{}", "text").map());
  }

  @Test
  void errorsSayWhere() {
    Json json = Json.parse("{\"a\":{\"b\":[1.5,\"x\"]}}", "file.json");
    assertMessage("file.json: a: b[0]", () -> json.get("a").get("b").integers());
    assertMessage("file.json: a: b[1]", () -> json.get("a").get("b").floats());
    assertMessage("file.json: a has no \"c\"", () -> json.get("a").get("c"));
    assertMessage("not a string", () -> json.get("a").text());
    for (String bad : List.of("", "{", "[1,]", "{\"a\" 1}", "{1:2}", "01", "1.", "tru", "\"a", "\"\\x\"", "\"\\u12\"",
        "[1] 2", "\"\n\"", "-", "+1", "[".repeat(100))) {
      assertMessage("text: ", () -> Json.parse(bad, "text"));
    }
  }

  /** A file of 100 MB and a byte, without a byte on the disk. */
  @Test
  void filesThatAreNoTextsOfAModelAreNotRead(@TempDir Path folder) throws Exception {
    Path file = folder.resolve("tokenizer.json");
    try (RandomAccessFile opened = new RandomAccessFile(file.toFile(), "rw")) {
      opened.setLength(100_000_001);
    }
    ModelException e = assertThrows(ModelException.class, () -> Json.read(file));
    assertTrue(e.getMessage().contains("100000001"), e.getMessage());
  }

  private static void assertMessage(String part, org.junit.jupiter.api.function.Executable work) {
    Json.JsonException e = assertThrows(Json.JsonException.class, work);
    assertTrue(e.getMessage().contains(part), e.getMessage());
  }
}
