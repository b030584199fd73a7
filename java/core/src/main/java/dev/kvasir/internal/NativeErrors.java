package dev.kvasir.internal;

import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.error.KvException;
import dev.kvasir.error.KvFileException;
import dev.kvasir.error.NativeUnavailableException;
import dev.kvasir.error.NotFiniteException;
import java.util.HashMap;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The one place where native errors become Java exceptions. They arrive as plain RuntimeExceptions whose message is
 * {@code <code name>: <text>} or {@code <code name>[<name>=<value> ...]: <text>}.
 */
public final class NativeErrors {

  private static final Pattern FORM = Pattern.compile("(\\w+)(?:\\[([^]]*)])?: (.*)", Pattern.DOTALL);

  /** What a caller in the middle of a step has to know. */
  private static final String REPAIR =
      ". If other layers have the tokens already, rollback() of the sequence makes all layers even again";

  private NativeErrors() {}

  /** The typed exception for a failure of native code; any other exception comes back as it is. */
  public static RuntimeException translate(RuntimeException failure) {
    if (failure.getClass() != RuntimeException.class) {
      return failure;
    }
    String message = String.valueOf(failure.getMessage());
    if (message.equals("std::bad_alloc")) {
      return new KvException(KvException.Code.OUT_OF_MEMORY, "the system refused memory to native code", failure);
    }
    Matcher form = FORM.matcher(message);
    if (!form.matches()) {
      return new KvException(KvException.Code.INTERNAL, message, failure);
    }
    Numbers numbers = new Numbers(form.group(2) == null ? "" : form.group(2));
    String text = form.group(3);
    switch (form.group(1)) {
      case "invalid_argument":
        return new IllegalArgumentException(text, failure);
      case "not_finite":
        return new NotFiniteException(text, numbers.place(), failure);
      case "unknown_sequence":
        return new IllegalStateException(text, failure);
      case "budget_exceeded":
        return new BudgetExceededException(
            text + REPAIR,
            numbers.get("needed"),
            numbers.get("left"),
            (int) numbers.get("layer"),
            numbers.get("own") == 1,
            failure);
      case "out_of_memory":
        return new KvException(KvException.Code.OUT_OF_MEMORY, text, failure);
      case "device_failed":
        return new KvException(KvException.Code.DEVICE_FAILED, text, failure);
      case "bad_bytes":
        return new KvFileException(numbers.reason(), text, failure);
      case "unavailable":
        return new NativeUnavailableException(text, failure);
      default:
        return new KvException(KvException.Code.INTERNAL, message, failure);
    }
  }

  /** What an error says to programs. */
  private static final class Numbers {

    private final Map<String, String> values = new HashMap<>();

    Numbers(String text) {
      for (String each : text.split(" ")) {
        int equals = each.indexOf('=');
        if (equals > 0) {
          values.put(each.substring(0, equals), each.substring(equals + 1));
        }
      }
    }

    /** -1 where it is not there. */
    long get(String name) {
      String value = values.get(name);
      return value == null ? -1 : Long.parseLong(value);
    }

    KvFileException.Reason reason() {
      long code = get("reason");
      for (KvFileException.Reason each : KvFileException.Reason.values()) {
        if (each.code() == code) {
          return each;
        }
      }
      return KvFileException.Reason.INVALID;
    }

    NotFiniteException.Place place() {
      return new NotFiniteException.Place(
          values.getOrDefault("input", ""),
          (int) get("layer"),
          get("token"),
          (int) get("head"),
          (int) get("channel"),
          Float.parseFloat(values.getOrDefault("value", "NaN")));
    }
  }
}
