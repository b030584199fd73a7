package dev.kvasir.lab;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * A JSON value that knows where it stands, so that whatever is wrong with a file is said by name: {@code config.json:
 * hidden_size is "big", not an integer}.
 */
public final class Json {

  /** A text that is no JSON, or a value that is not what its reader needs. */
  public static final class JsonException extends IllegalArgumentException {
    private static final long serialVersionUID = 1L;

    /** With what is wrong. */
    public JsonException(String message) {
      super(message);
    }
  }

  private final @Nullable Object value;
  private final String place;

  private Json(@Nullable Object value, String place) {
    this.value = value;
    this.place = place;
  }

  /** The value of a text; {@code name} is what errors call it. */
  public static Json parse(String text, String name) {
    return new Json(new Parser(text, name).whole(), name);
  }

  /** The value in a file in UTF-8. */
  public static Json read(Path file) throws IOException {
    return parse(new String(Files.readAllBytes(file), StandardCharsets.UTF_8), file.toString());
  }

  /** A member that must be there. */
  public Json get(String name) {
    return find(name).orElseThrow(() -> new JsonException(place + " has no \"" + name + "\""));
  }

  /** A member, if it is there and not null. */
  public Optional<Json> find(String name) {
    return Optional.ofNullable(map().get(name)).filter(member -> member.value != null);
  }

  /** The members in their order. */
  public Map<String, Json> map() {
    Map<String, Json> members = new LinkedHashMap<>();
    for (Map.Entry<?, ?> member : ((Map<?, ?>) as(Map.class, "an object")).entrySet()) {
      members.put((String) member.getKey(), new Json(member.getValue(), place + ": " + member.getKey()));
    }
    return members;
  }

  /** The elements. */
  public List<Json> list() {
    List<Json> elements = new ArrayList<>();
    for (Object element : as(List.class, "an array")) {
      elements.add(new Json(element, place + "[" + elements.size() + "]"));
    }
    return elements;
  }

  /** The elements as numbers. */
  public float[] floats() {
    List<?> elements = as(List.class, "an array");
    float[] numbers = new float[elements.size()];
    for (int i = 0; i < numbers.length; i++) {
      numbers[i] = (float) new Json(elements.get(i), place + "[" + i + "]").number();
    }
    return numbers;
  }

  /** The elements as integers. */
  public int[] integers() {
    return list().stream().mapToInt(Json::integer).toArray();
  }

  /** A string. */
  public String text() {
    return as(String.class, "a string");
  }

  /** True or false. */
  public boolean flag() {
    return as(Boolean.class, "true or false");
  }

  /** A number. */
  public double number() {
    return as(Double.class, "a number");
  }

  /** A number that is an int. */
  public int integer() {
    double number = number();
    if (number != (int) number) {
      throw new JsonException(place + " is " + number + ", not an integer");
    }
    return (int) number;
  }

  /** Whether this is a string. */
  public boolean isText() {
    return value instanceof String;
  }

  /** Whether this is an array. */
  public boolean isList() {
    return value instanceof List;
  }

  @Override
  public String toString() {
    return write(value);
  }

  /** The text of maps, lists, strings, numbers, booleans and null. NaN and infinity, which JSON lacks, become null. */
  public static String write(@Nullable Object value) {
    StringBuilder out = new StringBuilder();
    append(out, value);
    return out.toString();
  }

  private <T> T as(Class<T> type, String wanted) {
    if (!type.isInstance(value)) {
      String shown = write(value);
      throw new JsonException(
          place + " is " + (shown.length() > 80 ? shown.substring(0, 80) + "..." : shown) + ", not " + wanted);
    }
    return type.cast(value);
  }

  private static void append(StringBuilder out, @Nullable Object value) {
    if (value instanceof Map<?, ?> map) {
      String separator = "{";
      for (Map.Entry<?, ?> entry : map.entrySet()) {
        quote(out.append(separator), String.valueOf(entry.getKey()));
        append(out.append(":"), entry.getValue());
        separator = ",";
      }
      out.append(map.isEmpty() ? "{}" : "}");
    } else if (value instanceof List<?> list) {
      String separator = "[";
      for (Object element : list) {
        append(out.append(separator), element);
        separator = ",";
      }
      out.append(list.isEmpty() ? "[]" : "]");
    } else if (value instanceof String text) {
      quote(out, text);
    } else if (value instanceof Double number) {
      boolean whole = number == Math.rint(number) && Math.abs(number) < 1e15;
      out.append(!Double.isFinite(number) ? "null" : whole ? String.valueOf(number.longValue()) : number.toString());
    } else {
      out.append(value);
    }
  }

  private static void quote(StringBuilder out, String text) {
    out.append('"');
    for (char c : text.toCharArray()) {
      if (c == '"' || c == '\\') {
        out.append('\\').append(c);
      } else if (c < ' ' || Character.isSurrogate(c)) {
        out.append(String.format("\\u%04x", (int) c));
      } else {
        out.append(c);
      }
    }
    out.append('"');
  }

  /** Recursive descent. Numbers become Doubles. */
  private static final class Parser {

    private static final int MAX_DEPTH = 64;

    private final String text;
    private final String name;
    private int at;
    private int depth;

    Parser(String text, String name) {
      this.text = text;
      this.name = name;
    }

    @Nullable Object whole() {
      Object value = value();
      skipSpace();
      if (at < text.length()) {
        throw error("something after the value");
      }
      return value;
    }

    private @Nullable Object value() {
      skipSpace();
      if (depth > MAX_DEPTH) {
        throw error("more than " + MAX_DEPTH + " levels");
      }
      char c = peek();
      if (c == '{' || c == '[') {
        depth++;
        at++;
        Object result = c == '{' ? object() : array();
        depth--;
        return result;
      }
      if (c == '"') {
        return string();
      }
      for (Object word : new Object[] {true, false, null}) {
        if (text.startsWith(String.valueOf(word), at)) {
          at += String.valueOf(word).length();
          return word;
        }
      }
      return number();
    }

    private Map<String, @Nullable Object> object() {
      Map<String, @Nullable Object> members = new LinkedHashMap<>();
      while (more('}', members.isEmpty())) {
        skipSpace();
        if (peek() != '"') {
          throw error("a name was expected");
        }
        String member = string();
        skipSpace();
        expect(':');
        members.put(member, value());
      }
      return members;
    }

    private List<@Nullable Object> array() {
      List<@Nullable Object> elements = new ArrayList<>();
      while (more(']', elements.isEmpty())) {
        elements.add(value());
      }
      return elements;
    }

    private boolean more(char end, boolean first) {
      skipSpace();
      if (peek() == end) {
        at++;
        return false;
      }
      if (!first) {
        expect(',');
      }
      return true;
    }

    private String string() {
      StringBuilder out = new StringBuilder();
      for (at++; peek() != '"'; at++) {
        char c = peek();
        if (c < ' ') {
          throw error("a control character in a string");
        }
        out.append(c == '\\' ? escape() : c);
      }
      at++;
      return out.toString();
    }

    private char escape() {
      at++;
      char c = peek();
      int known = "\"\\/bfnrt".indexOf(c);
      if (known >= 0) {
        return "\"\\/\b\f\n\r\t".charAt(known);
      }
      try {
        if (c == 'u') {
          at += 4;
          return (char) Integer.parseInt(text.substring(at - 3, at + 1), 16);
        }
      } catch (NumberFormatException | IndexOutOfBoundsException e) {
        at -= 4;
      }
      throw error("an unknown escape");
    }

    private Double number() {
      int start = at;
      while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) {
        at++;
      }
      String number = text.substring(start, at);
      if (!number.matches("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?")) {
        at = start;
        throw error("a value was expected");
      }
      return Double.valueOf(number);
    }

    private void skipSpace() {
      while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
        at++;
      }
    }

    private char peek() {
      if (at >= text.length()) {
        throw error("the text ends");
      }
      return text.charAt(at);
    }

    private void expect(char c) {
      if (peek() != c) {
        throw error("'" + c + "' was expected");
      }
      at++;
    }

    private JsonException error(String problem) {
      return new JsonException(name + ": " + problem + " at character " + at);
    }
  }
}
