package dev.kvasir.internal.json;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * JSON (RFC 8259) for headers and metadata, strict: valid UTF-8, no name twice in an object, no more than one value.
 * Objects become maps in their order, arrays lists, integers Longs, other numbers Doubles.
 */
public final class Json {

  /** Deep enough for any file of ours, shallow enough for any stack. */
  private static final int MAX_DEPTH = 32;

  /** What is wrong with a text, and where. */
  public static final class SyntaxException extends Exception {
    private static final long serialVersionUID = 1L;

    SyntaxException(String message) {
      super(message);
    }
  }

  private final String text;
  private int at;
  private int depth;

  private Json(String text) {
    this.text = text;
  }

  /** The value of a text in UTF-8. */
  public static @Nullable Object parse(byte[] utf8) throws SyntaxException {
    String text;
    try {
      text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(utf8)).toString();
    } catch (CharacterCodingException e) {
      throw new SyntaxException("the text is not valid UTF-8");
    }
    return parse(text);
  }

  public static @Nullable Object parse(String text) throws SyntaxException {
    Json json = new Json(text);
    Object value = json.value();
    json.skipSpace();
    if (json.at < text.length()) {
      throw json.error("something after the value");
    }
    return value;
  }

  /** The value as a map. Throws SyntaxException if it is none; {@code what} names it. */
  @SuppressWarnings("unchecked")
  public static Map<String, @Nullable Object> object(@Nullable Object value, String what) throws SyntaxException {
    if (!(value instanceof Map)) {
      throw new SyntaxException(what + " is no object");
    }
    return (Map<String, @Nullable Object>) value;
  }

  @SuppressWarnings("unchecked")
  public static List<@Nullable Object> array(@Nullable Object value, String what) throws SyntaxException {
    if (!(value instanceof List)) {
      throw new SyntaxException(what + " is no array");
    }
    return (List<@Nullable Object>) value;
  }

  public static String string(@Nullable Object value, String what) throws SyntaxException {
    if (!(value instanceof String)) {
      throw new SyntaxException(what + " is no string");
    }
    return (String) value;
  }

  public static long integer(@Nullable Object value, String what) throws SyntaxException {
    if (!(value instanceof Long)) {
      throw new SyntaxException(what + " is no integer that fits 64 bits");
    }
    return (Long) value;
  }

  /** The text of a value made of maps, lists, strings, numbers, booleans and null. */
  public static String write(@Nullable Object value) {
    StringBuilder out = new StringBuilder();
    append(out, value);
    return out.toString();
  }

  private static void append(StringBuilder out, @Nullable Object value) {
    if (value instanceof Map) {
      String separator = "{";
      for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
        out.append(separator);
        quote(out, (String) entry.getKey());
        out.append(':');
        append(out, entry.getValue());
        separator = ",";
      }
      out.append(separator.equals("{") ? "{}" : "}");
    } else if (value instanceof List) {
      String separator = "[";
      for (Object element : (List<?>) value) {
        out.append(separator);
        append(out, element);
        separator = ",";
      }
      out.append(separator.equals("[") ? "[]" : "]");
    } else if (value instanceof String) {
      quote(out, (String) value);
    } else {
      if (value instanceof Double && !Double.isFinite((Double) value)) {
        throw new IllegalArgumentException("JSON has no " + value);
      }
      out.append(value);
    }
  }

  private static void quote(StringBuilder out, String text) {
    out.append('"');
    for (int i = 0; i < text.length(); i++) {
      char c = text.charAt(i);
      if (c == '"' || c == '\\') {
        out.append('\\').append(c);
      } else if (c < ' ' || Character.isSurrogate(c)) {
        // Surrogates as well, so that half a pair survives: UTF-8 has no bytes for it.
        out.append(String.format("\\u%04x", (int) c));
      } else {
        out.append(c);
      }
    }
    out.append('"');
  }

  private @Nullable Object value() throws SyntaxException {
    skipSpace();
    switch (peek()) {
      case '{':
        return nested(this::object);
      case '[':
        return nested(this::array);
      case '"':
        return string();
      case 't':
        return word("true", true);
      case 'f':
        return word("false", false);
      case 'n':
        return word("null", null);
      default:
        return number();
    }
  }

  private interface Part {
    Object read() throws SyntaxException;
  }

  private Object nested(Part part) throws SyntaxException {
    if (++depth > MAX_DEPTH) {
      throw error("more than " + MAX_DEPTH + " levels");
    }
    at++;
    Object value = part.read();
    at++;
    depth--;
    return value;
  }

  private Map<String, @Nullable Object> object() throws SyntaxException {
    Map<String, @Nullable Object> map = new LinkedHashMap<>();
    skipSpace();
    if (peek() == '}') {
      return map;
    }
    while (true) {
      skipSpace();
      if (peek() != '"') {
        throw error("a name was expected");
      }
      int start = at;
      String name = string();
      if (map.containsKey(name)) {
        at = start;
        throw error("the name \"" + abbreviate(name) + "\" for the second time");
      }
      skipSpace();
      expect(':');
      map.put(name, value());
      skipSpace();
      if (peek() == '}') {
        return map;
      }
      expect(',');
    }
  }

  private List<@Nullable Object> array() throws SyntaxException {
    List<@Nullable Object> list = new ArrayList<>();
    skipSpace();
    if (peek() == ']') {
      return list;
    }
    while (true) {
      list.add(value());
      skipSpace();
      if (peek() == ']') {
        return list;
      }
      expect(',');
    }
  }

  private String string() throws SyntaxException {
    StringBuilder out = new StringBuilder();
    expect('"');
    while (true) {
      char c = peek();
      at++;
      if (c == '"') {
        return out.toString();
      }
      if (c < ' ') {
        at--;
        throw error("a control character in a string");
      }
      out.append(c == '\\' ? escape() : c);
    }
  }

  private char escape() throws SyntaxException {
    char c = peek();
    int known = "\"\\/bfnrt".indexOf(c);
    at++;
    if (known >= 0) {
      return "\"\\/\b\f\n\r\t".charAt(known);
    }
    if (c != 'u' || at + 4 > text.length()) {
      at--;
      throw error("an unknown escape");
    }
    int code = 0;
    for (int end = at + 4; at < end; at++) {
      int digit = Character.digit(text.charAt(at), 16);
      if (digit < 0 || text.charAt(at) > 'f') {
        throw error("a digit that is not hexadecimal");
      }
      code = 16 * code + digit;
    }
    return (char) code;
  }

  private Object number() throws SyntaxException {
    int start = at;
    if (peek() == '-') {
      at++;
    }
    if (peek() == '0') {
      at++;
    } else {
      digits();
    }
    boolean integer = true;
    if (at < text.length() && text.charAt(at) == '.') {
      integer = false;
      at++;
      digits();
    }
    if (at < text.length() && (text.charAt(at) | 32) == 'e') {
      integer = false;
      at++;
      if (peek() == '+' || peek() == '-') {
        at++;
      }
      digits();
    }
    String number = text.substring(start, at);
    try {
      if (integer) {
        return Long.valueOf(number);
      }
    } catch (NumberFormatException e) {
      // Too large for a long; a double holds its magnitude.
    }
    return Double.valueOf(number);
  }

  private void digits() throws SyntaxException {
    int start = at;
    while (at < text.length() && text.charAt(at) >= '0' && text.charAt(at) <= '9') {
      at++;
    }
    if (at == start) {
      throw error("a value was expected");
    }
  }

  private <T> @Nullable T word(String word, @Nullable T value) throws SyntaxException {
    if (!text.startsWith(word, at)) {
      throw error("a value was expected");
    }
    at += word.length();
    return value;
  }

  private void skipSpace() {
    while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
      at++;
    }
  }

  private char peek() throws SyntaxException {
    if (at >= text.length()) {
      throw error("the text ends");
    }
    return text.charAt(at);
  }

  private void expect(char c) throws SyntaxException {
    if (peek() != c) {
      throw error("'" + c + "' was expected");
    }
    at++;
  }

  private SyntaxException error(String problem) {
    return new SyntaxException(problem + " at character " + at);
  }

  public static String abbreviate(String text) {
    return text.length() <= 100 ? text : text.substring(0, 100) + "...";
  }

  /** A message that may hold more of a file than anybody would read. */
  public static String bounded(String message) {
    return message.length() <= 1000 ? message : message.substring(0, 1000) + "...";
  }
}
