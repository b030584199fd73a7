package dev.kvasir.stress;

/** The library did what it must not do. */
final class Violation extends RuntimeException {

  private static final long serialVersionUID = 1;

  Violation(String message) {
    super(message);
  }

  Violation(String message, Throwable cause) {
    super(message, cause);
  }

  static void unless(boolean truth, String message) {
    if (!truth) {
      throw new Violation(message);
    }
  }
}
