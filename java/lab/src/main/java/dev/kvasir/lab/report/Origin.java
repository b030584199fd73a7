package dev.kvasir.lab.report;

import dev.kvasir.Kvasir;
import java.time.LocalDate;

/**
 * Where a page comes from: whoever finds one later can make it again.
 *
 * @param version of the library
 * @param date when it was made
 * @param command what makes it
 */
public record Origin(String version, LocalDate date, String command) {

  /** Made now, by a command. */
  public static Origin now(String command) {
    return new Origin(Kvasir.version(), LocalDate.now(), command);
  }

  /** A line for the end of a page. */
  String html() {
    return "<footer class=\"note\">Kvasir " + Svg.escape(version) + " · " + date + " · <code>" + Svg.escape(command)
        + "</code></footer>";
  }
}
