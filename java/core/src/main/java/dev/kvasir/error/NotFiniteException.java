package dev.kvasir.error;

import java.io.Serializable;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * Data holds a NaN, an infinity or, where it is appended, a magnitude above 32752: pages keep the ranges of their
 * elements in float16, and 32752 - (-32752) is the widest that it has. The usual reason is a model that has diverged,
 * not a wrong call, which is why it has a type of its own. Nothing was appended.
 */
public class NotFiniteException extends IllegalArgumentException {

  private static final long serialVersionUID = 1L;

  /** Where the element is, as far as that is known. */
  private final Place place;

  /**
   * The first such element.
   *
   * @param input what it is part of: "keys", "values" or "queries"; empty where unknown
   * @param layer the layer, -1 where unknown
   * @param token its token, counted from 0 in the call; -1 where unknown
   * @param head the kv head of keys and values, the query head of queries; -1 where unknown
   * @param channel its channel, -1 where unknown
   * @param value the element; NaN also where unknown
   */
  public record Place(String input, int layer, long token, int head, int channel, float value)
      implements Serializable {

    /** Nothing is known. */
    static final Place UNKNOWN = new Place("", -1, -1, -1, -1, Float.NaN);
  }

  /**
   * Makes an exception without numbers.
   *
   * @param message the element and its place
   * @param cause what led to it, or null
   */
  public NotFiniteException(String message, @Nullable Throwable cause) {
    this(message, Place.UNKNOWN, cause);
  }

  /**
   * Makes an exception.
   *
   * @param message the element and its place
   * @param place the same in numbers
   * @param cause what led to it, or null
   */
  public NotFiniteException(String message, Place place, @Nullable Throwable cause) {
    super(message, cause);
    this.place = Objects.requireNonNull(place, "place");
  }

  /**
   * What the element is part of.
   *
   * @return "keys", "values" or "queries"; empty where it is unknown
   */
  public String input() {
    return place.input();
  }

  /**
   * The layer of the call.
   *
   * @return its number, -1 where it is unknown
   */
  public int layer() {
    return place.layer();
  }

  /**
   * The token of the element.
   *
   * @return its number, counted from 0 in the call; -1 where it is unknown
   */
  public long token() {
    return place.token();
  }

  /**
   * The head of the element.
   *
   * @return the kv head of keys and values, the query head of queries; -1 where it is unknown
   */
  public int head() {
    return place.head();
  }

  /**
   * The channel of the element within its head.
   *
   * @return its number, -1 where it is unknown
   */
  public int channel() {
    return place.channel();
  }

  /**
   * The element.
   *
   * @return NaN, an infinity, or a number that is too large; NaN also where it is unknown
   */
  public float value() {
    return place.value();
  }
}
