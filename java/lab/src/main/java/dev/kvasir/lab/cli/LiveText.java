package dev.kvasir.lab.cli;

import dev.kvasir.KvStats;
import dev.kvasir.runner.Engine;
import java.io.PrintStream;
import java.util.Locale;

/** Shows a text as it is written, and how fast. */
final class LiveText {

  private final PrintStream out;
  private final boolean live;
  private final long start = System.nanoTime();
  private long first;
  private int tokens;

  /** {@code live}: whether the title of the terminal's window tells the speed meanwhile. */
  LiveText(PrintStream out, boolean live) {
    this.out = out;
    this.live = live;
  }

  void written(String text, Engine engine) {
    tokens++;
    if (tokens == 1) {
      first = System.nanoTime();
    }
    out.print(text);
    if (live) {
      out.print("\u001b]0;" + speed(engine) + "\u0007");
    }
    out.flush();
  }

  /** A line that says what it took. */
  void end(Engine engine, int prompt) {
    double reading = ((tokens == 0 ? System.nanoTime() : first) - start) / 1e9;
    out.printf(
        Locale.ROOT, "%n[%d tokens read in %.2f s, %.1f/s; %s]%n", prompt, reading, prompt / reading, speed(engine));
    out.flush();
  }

  private String speed(Engine engine) {
    KvStats stats = engine.stats();
    double seconds = (System.nanoTime() - first) / 1e9;
    return String.format(
        Locale.ROOT,
        "%d written, %.1f/s; cache %.2f MiB",
        tokens,
        tokens > 1 ? (tokens - 1) / seconds : 0,
        stats.bytes() / 1048576.0);
  }
}
