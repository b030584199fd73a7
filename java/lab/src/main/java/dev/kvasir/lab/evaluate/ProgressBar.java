package dev.kvasir.lab.evaluate;

import java.io.Console;
import java.io.PrintStream;
import java.util.Locale;

/** A line that says how far things are and how long they will take; on a terminal it rewrites itself. */
public final class ProgressBar {

  private static final int WIDTH = 30;
  private static final double SECONDS_BETWEEN_LINES = 15;
  private static final double SECONDS_BETWEEN_REWRITES = 0.2;

  private final PrintStream out;
  private final boolean terminal;
  private final long start = System.nanoTime();
  private double last = Double.NEGATIVE_INFINITY;
  private int longest;

  /** On a terminal, or line by line on anything else. */
  public ProgressBar(PrintStream out, boolean terminal) {
    this.out = out;
    this.terminal = terminal;
  }

  /** Whether what is printed goes to somebody who watches. */
  public static boolean onTerminal() {
    Console console = System.console();
    if (console == null) {
      return false;
    }
    try {
      // From JDK 22 on there is a console in any case, which knows.
      return (Boolean) Console.class.getMethod("isTerminal").invoke(console);
    } catch (ReflectiveOperationException e) {
      return true;
    }
  }

  /** Shows how far things are, unless it has just done so. */
  public void show(long done, long total, String doing) {
    double seconds = (System.nanoTime() - start) / 1e9;
    if (seconds - last < (terminal ? SECONDS_BETWEEN_REWRITES : SECONDS_BETWEEN_LINES) && done < total) {
      return;
    }
    last = seconds;
    String line = line(done, total, seconds, doing);
    longest = Math.max(longest, line.length());
    if (terminal) {
      out.print("\r" + line + " ".repeat(longest - line.length()));
    } else {
      out.println(line);
    }
    out.flush();
  }

  /** Leaves the line. */
  public void end() {
    if (terminal) {
      out.print("\r" + " ".repeat(longest) + "\r");
      out.flush();
    }
  }

  static String line(long done, long total, double seconds, String doing) {
    double share = total == 0 ? 1 : (double) done / total;
    int filled = (int) (share * WIDTH);
    String left = done == 0 ? "" : ", " + time(seconds * (1 - share) / share) + " left";
    return String.format(
        Locale.ROOT, "[%s%s] %3.0f %%, %s%s  %s",
        "#".repeat(filled), ".".repeat(WIDTH - filled), 100 * share, time(seconds), left, doing);
  }

  /** A time for people. */
  public static String time(double seconds) {
    long whole = Math.round(seconds);
    return whole < 60 ? whole + " s" : whole / 60 + " min " + whole % 60 + " s";
  }
}
