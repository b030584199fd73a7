package dev.kvasir.runner.file;

import java.io.IOException;
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
    try {
      return new Json(dev.kvasir.internal.json.Json.parse(text), name);
    } catch (dev.kvasir.internal.json.Json.SyntaxException e) {
      throw new JsonException(name + ": " + e.getMessage());
    }
  }

  /** The value in a file in UTF-8. */
  public static Json read(Path file) throws IOException {
    return parse(Texts.read(file), file.toString());
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
      members.put((String) member.getKey(), new Json(member.getValue(), place + ": " + shown((String) member.getKey())));
    }
    return members;
  }

  private static String shown(String name) {
    return dev.kvasir.internal.json.Json.abbreviate(name);
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
    return as(Number.class, "a number").doubleValue();
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

  /** Whether this is an object. */
  public boolean isObject() {
    return value instanceof Map;
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
    return dev.kvasir.internal.json.Json.write(tidy(value));
  }

  private <T> T as(Class<T> type, String wanted) {
    if (!type.isInstance(value)) {
      String shown = write(value);
      throw new JsonException(
          place + " is " + (shown.length() > 80 ? shown.substring(0, 80) + "..." : shown) + ", not " + wanted);
    }
    return type.cast(value);
  }

  /** With numbers as reports have them: whole ones without a point, those that JSON lacks as null. */
  private static @Nullable Object tidy(@Nullable Object value) {
    if (value instanceof Map<?, ?> map) {
      Map<String, @Nullable Object> members = new LinkedHashMap<>();
      map.forEach((name, member) -> members.put(String.valueOf(name), tidy(member)));
      return members;
    }
    if (value instanceof List<?> list) {
      List<@Nullable Object> elements = new ArrayList<>();
      list.forEach(element -> elements.add(tidy(element)));
      return elements;
    }
    if (value instanceof Double number) {
      boolean whole = number == Math.rint(number) && Math.abs(number) < 1e15;
      return !Double.isFinite(number) ? null : whole ? (Object) number.longValue() : number;
    }
    return value;
  }
}
