package dev.kvasir.internal.json;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class JsonTest {

  @Test
  void readsWhatTheStandardAllows() throws Exception {
    assertEquals(Map.of(), Json.parse(" { } "));
    assertEquals(List.of(), Json.parse("[\t\r\n]"));
    assertEquals(
        Map.of("a", List.of(1L, -2L, 0L, Long.MAX_VALUE), "b", Map.of("c", true, "d", false)),
        Json.parse("{\"a\":[1,-2,0,9223372036854775807],\"b\":{\"c\":true,\"d\":false}}"));
    assertEquals(
        Arrays.asList(1.5, 1e3, -0.25, 1e20, null), Json.parse("[1.5,1E+3,-25e-2,100000000000000000000,null]"));
    assertEquals(
        "\"\\/\b\f\n\r\t\u00e9\ud83d\ude00é",
        Json.parse("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\uDE00é\""));
  }

  @Test
  void refusesWhatItForbids() {
    for (String text :
        List.of(
            "", " ", "{", "}", "[1,]", "[,1]", "{\"a\":1,}", "{\"a\"}", "{a:1}", "{\"a\":1}x", "[1 2]", "nul", "True",
            "01", "-", "1.", ".5", "1e", "+1", "0x10", "NaN", "Infinity", "'a'", "\"a", "\"\\x\"", "\"\\u12\"",
            "\"\\u12g4\"", "\"\\u１234\"",
            "\"a\nb\"", "\"a\u0000\"", "{\"a\":1,\"a\":2}", "{\"a\":1,\"\\u0061\":2}", "[1]]",
            "/**/1", "[1e]", "[-]", "{\"a\":}", "{1:2}")) {
      assertThrows(Json.SyntaxException.class, () -> Json.parse(text), text);
    }
  }

  @Test
  void refusesBytesThatAreNotUtf8() {
    byte[] bytes = "[\"a\"]".getBytes(StandardCharsets.UTF_8);
    bytes[2] = (byte) 0xFF;
    assertThrows(Json.SyntaxException.class, () -> Json.parse(bytes));
    // An overlong encoding of '/'.
    assertThrows(Json.SyntaxException.class, () -> Json.parse(new byte[] {'"', (byte) 0xC0, (byte) 0xAF, '"'}));
  }

  @Test
  void refusesDepthThatWouldExhaustTheStack() {
    String deep = "[".repeat(1_000_000);
    assertThrows(Json.SyntaxException.class, () -> Json.parse(deep));
    assertThrows(Json.SyntaxException.class, () -> Json.parse(deep.replace("[", "{\"a\":")));
  }

  @Test
  void writesWhatItReads() throws Exception {
    Map<String, Object> value = new LinkedHashMap<>();
    value.put("text \"\\\n\u0001\u007f é \ud83d\ude00 \ud800", List.of(1L, 2.5, 1e300, -1e-300, true, "x"));
    value.put("", new LinkedHashMap<>());
    value.put("list", List.of(List.of(), Map.of("k", "v")));
    assertEquals(value, Json.parse(Json.write(value)));
    assertEquals(value, Json.parse(Json.write(value).getBytes(StandardCharsets.UTF_8)));
    assertThrows(IllegalArgumentException.class, () -> Json.write(Double.NaN));
  }
}
