package dev.kvasir.lab.report;

import dev.kvasir.Side;
import dev.kvasir.lab.inspect.ChannelStatistics;
import java.util.List;
import java.util.Locale;

/** Channel statistics for terminals and as a page. */
public final class InspectReport {

  private InspectReport() {}

  /** A line for each layer, side and kv head. */
  public static String text(List<ChannelStatistics> all) {
    StringBuilder out = new StringBuilder();
    out.append(
        String.format("%5s %-7s %4s %9s %14s %18s%n", "layer", "side", "head", "largest", "widest/median",
            "token/channel range"));
    for (ChannelStatistics one : all) {
      out.append(
          String.format(Locale.ROOT, "%5d %-7s %4d %9.2f %14.1f %18.2f%n", one.layer(), name(one.side()), one.head(),
              one.largest(), one.outlierRatio(), one.tokenOverChannel()));
    }
    return out.toString();
  }

  /** Ranges of all channels as two pictures, on a page that needs nothing else. */
  public static String html(String model, int tokens, List<ChannelStatistics> all, Origin origin) {
    StringBuilder out = new StringBuilder(HtmlReport.opening("Kvasir: the cache of " + model));
    out.append("<header><p class=\"brand\">Kvasir</p><h1>Keys and values of ").append(Svg.escape(model));
    out.append("</h1><p class=\"lead\">Range of every channel over a text of ").append(tokens);
    out.append(" tokens, keys after RoPE. Wide channels among narrow ones make a cache hard to quantise.</p>");
    out.append("</header>");
    double high = all.stream().flatMapToDouble(one -> java.util.Arrays.stream(one.ranges())).max().orElse(1);
    double least = all.stream().flatMapToDouble(one -> java.util.Arrays.stream(one.ranges())).min().orElse(0);
    double low = Math.max(Math.max(high / 300, least), 1e-6);
    for (Side side : Side.values()) {
      List<ChannelStatistics> rows = all.stream().filter(one -> one.side() == side).toList();
      out.append("<section><h2>").append(side == Side.KEYS ? "Keys" : "Values").append("</h2><figure>");
      out.append(channels(rows, low, high)).append("</figure></section>");
    }
    out.append("<section><div class=\"scroll\"><table><thead><tr><th>layer</th><th>side</th><th>kv head</th>");
    out.append("<th>largest</th><th>widest channel / median</th><th>range of a token / of a channel</th></tr></thead>");
    for (ChannelStatistics one : all) {
      out.append(
          Svg.format("<tr><th>%d</th><td>%s</td><td>%d</td><td>%.2f</td><td>%.1f</td><td>%.2f</td></tr>",
              one.layer(), name(one.side()), one.head(), one.largest(), one.outlierRatio(), one.tokenOverChannel()));
    }
    out.append("</table></div></section>").append(origin.html());
    return out.append("</main></body></html>\n").toString();
  }

  /** A row for each layer and head, a column for each channel. */
  private static String channels(List<ChannelStatistics> rows, double low, double high) {
    int left = 92;
    int height = 15;
    int columns = rows.stream().mapToInt(row -> row.ranges().length).max().orElse(1);
    double width = 960.0 / columns;
    Svg svg = new Svg(left + 970, rows.size() * height + 30, "ranges of channels");
    Scale share = Scale.logarithmic(low, high, 0, 1);
    for (int i = 0; i < rows.size(); i++) {
      ChannelStatistics row = rows.get(i);
      svg.text(left - 8, i * height + 12, "end", ".tick", "layer " + row.layer() + ", head " + row.head());
      for (int c = 0; c < row.ranges().length; c++) {
        String tip = Svg.format("channel %d: range %.3g", c, row.ranges()[c]);
        String fill = "fill:" + Charts.colour(share.at(row.ranges()[c]));
        svg.rectangle(left + c * width, i * height + 1, width - 0.4, height - 2, fill, tip);
      }
    }
    for (int c = 0; c < columns; c += 16) {
      svg.text(left + (c + 0.5) * width, rows.size() * height + 14, "middle", ".tick", String.valueOf(c));
    }
    return svg.text(left + 480, rows.size() * height + 28, "middle", ".note", "channel").end();
  }

  private static String name(Side side) {
    return side.name().toLowerCase(Locale.ROOT);
  }
}
