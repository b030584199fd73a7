package dev.kvasir.lab.report;

import dev.kvasir.lab.evaluate.MethodResult;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** The kinds of pictures of the report. */
final class Charts {

  /** A point with a name. */
  record Point(String name, String colour, double x, double y, double error) {}

  /** A line with a name. */
  record Series(String name, String colour, double[] points) {}

  /** Colours of widths, in the order in which they are stacked. */
  static final Map<Integer, String> TIERS = new TreeMap<>(
      Map.of(1, "#f2e3b3", 2, "#f6c667", 3, "#f3a45b", 4, "#e97a4d", 8, "#b53a63", 16, "#4a1762"));

  private static final int WIDTH = 560;
  private static final int HEIGHT = 380;
  private static final int LEFT = 62;
  private static final int RIGHT = 18;
  private static final int TOP = 16;
  private static final int BOTTOM = 48;
  /** Room for names beside lines. */
  private static final int NAMES = 150;

  private Charts() {}

  /** Which way is good. */
  enum Good {
    UP,
    DOWN
  }

  /**
   * Quality against bits, which have a logarithmic axis. The line joins the points that no other beats in both.
   *
   * @param logarithmic whether quality has one too
   */
  static String front(String title, String yTitle, List<Point> points, boolean logarithmic, Good good) {
    Svg svg = new Svg(WIDTH, HEIGHT, title);
    if (points.isEmpty()) {
      return svg.text(WIDTH / 2.0, HEIGHT / 2.0, "middle", ".note", "nothing measured").end();
    }
    double lowX = points.stream().mapToDouble(Point::x).min().orElse(1) / 1.2;
    double highX = points.stream().mapToDouble(Point::x).max().orElse(16) * 1.25;
    Scale x = Scale.logarithmic(lowX, highX, LEFT, WIDTH - RIGHT);
    double lowY = points.stream().mapToDouble(Point::y).min().orElse(0);
    double highY = points.stream().mapToDouble(Point::y).max().orElse(1);
    Scale y =
        logarithmic
            ? Scale.logarithmic(lowY / 1.6, highY * 1.6, HEIGHT - BOTTOM, TOP)
            : Scale.linear(lowY - 0.06 * (highY - lowY), highY + 0.06 * (highY - lowY), HEIGHT - BOTTOM, TOP);
    frame(svg, x, y, "true bits per element (codes, scales, patterns, windows)", yTitle);
    svg.path(best(points, good, x, y), ".front");
    List<double[]> taken = new ArrayList<>();
    for (Point point : points) {
      double px = x.at(point.x());
      taken.add(new double[] {px - 7, y.at(point.y()) - 7, px + 7, y.at(point.y()) + 7});
    }
    for (Point point : points) {
      double px = x.at(point.x());
      double py = y.at(point.y());
      if (point.error() > 0) {
        double least = logarithmic ? Math.max(point.y() - point.error(), point.y() / 20) : point.y() - point.error();
        svg.line(px, y.at(least), px, y.at(point.y() + point.error()), "stroke:" + point.colour() + ";opacity:.55");
      }
      String tip = point.name() + ": " + Scale.text(point.x()) + " bits, " + Svg.format("%.4g", point.y());
      svg.circle(px, py, 5.5, "fill:" + point.colour(), tip);
      label(svg, point.name(), px, py, taken);
    }
    return svg.end();
  }

  /** Lines over tokens. */
  static String lines(String title, String xTitle, String yTitle, List<Series> all) {
    Svg svg = new Svg(WIDTH, HEIGHT, title);
    double highX = 1;
    double lowY = Double.MAX_VALUE;
    double highY = 1;
    for (Series series : all) {
      for (int i = 0; i + 1 < series.points().length; i += 2) {
        highX = Math.max(highX, series.points()[i]);
        lowY = Math.min(lowY, series.points()[i + 1]);
        highY = Math.max(highY, series.points()[i + 1]);
      }
    }
    Scale x = Scale.linear(0, highX, LEFT, WIDTH - NAMES);
    Scale y = Scale.logarithmic(lowY / 1.15, highY * 1.15, HEIGHT - BOTTOM, TOP);
    frame(svg, x, y, xTitle, yTitle);
    // Names at the ends of the lines, from the top down, pushed apart where lines meet.
    List<Series> sorted = new ArrayList<>(all);
    sorted.sort(Comparator.comparingDouble(series -> y.at(series.points()[series.points().length - 1])));
    double free = 0;
    for (Series series : sorted) {
      double[] places = series.points().clone();
      for (int i = 0; i + 1 < places.length; i += 2) {
        places[i] = x.at(places[i]);
        places[i + 1] = y.at(places[i + 1]);
      }
      svg.path(places, "stroke:" + series.colour() + ";stroke-width:2");
      double end = places[places.length - 1];
      double at = Math.max(end, free);
      svg.line(places[places.length - 2], end, WIDTH - NAMES + 6, at, "stroke:" + series.colour() + ";opacity:.4");
      svg.text(WIDTH - NAMES + 9, at + 4, "start", ".label", series.name());
      free = at + 13;
    }
    return svg.end();
  }

  /** {@code values[row][column]} as colours, between {@code low} and {@code high} by logarithm. */
  static String heat(String title, double[][] values, double low, double high) {
    int height = 22;
    int left = 30;
    int top = 22;
    int columns = values.length == 0 ? 0 : values[0].length;
    int cell = Math.max(22, columns == 0 ? 0 : 180 / columns);
    Svg svg = new Svg(left + Math.max(columns * cell, 180) + 6, top + values.length * height + 20, title);
    svg.text(left, 13, "start", ".title", title);
    Scale share = Scale.logarithmic(low, high, 0, 1);
    for (int row = 0; row < values.length; row++) {
      svg.text(left - 6, top + row * height + 15, "end", ".tick", String.valueOf(row));
      for (int column = 0; column < columns; column++) {
        double value = values[row][column];
        String tip = Svg.format("layer %d, head %d: %.2f %%", row, column, 100 * value);
        double x = left + column * cell;
        svg.rectangle(x, top + row * height, cell - 1.5, height - 1.5, "fill:" + colour(share.at(value)), tip);
      }
    }
    for (int column = 0; column < columns; column++) {
      double y = top + values.length * height + 12;
      svg.text(left + column * cell + cell / 2.0 - 1, y, "middle", ".tick", String.valueOf(column));
    }
    return svg.end();
  }

  /** What the colours of {@link #heat} mean. */
  static String heatKey(double low, double high) {
    Svg svg = new Svg(420, 40, "colour scale");
    for (int i = 0; i < 60; i++) {
      svg.rectangle(10 + i * 6, 4, 6.5, 12, "fill:" + colour(i / 59.0), "");
    }
    Scale place = Scale.logarithmic(low, high, 10, 370);
    for (double tick : place.ticks()) {
      svg.line(place.at(tick), 16, place.at(tick), 20, ".axis");
      svg.text(place.at(tick), 32, "middle", ".tick", Svg.format("%.3g %%", 100 * tick));
    }
    return svg.end();
  }

  /** Two bars a layer, shares from 0 to 1. */
  static String pairs(String title, double[] first, double[] second, String firstColour, String secondColour) {
    int left = 44;
    int step = 34;
    int height = 170;
    Svg svg = new Svg(left + Math.max(4, first.length) * step + 10, height, title);
    svg.text(left, 13, "start", ".title", title);
    Scale y = Scale.linear(0, 1, height - 24, 24);
    for (double tick : new double[] {0, 0.25, 0.5, 0.75, 1}) {
      svg.line(left, y.at(tick), left + first.length * step, y.at(tick), ".grid");
      svg.text(left - 6, y.at(tick) + 4, "end", ".tick", Svg.format("%.0f %%", 100 * tick));
    }
    for (int i = 0; i < first.length; i++) {
      double x = left + i * step + 4;
      bar(svg, x, y, first[i], firstColour, "layer " + i + ", keys");
      bar(svg, x + 13, y, second[i], secondColour, "layer " + i + ", values");
      svg.text(x + 12, height - 9, "middle", ".tick", String.valueOf(i));
    }
    return svg.end();
  }

  /** One bar a layer, made of the shares of widths. */
  static String stacks(String title, List<MethodResult.Tiers> layers) {
    int left = 44;
    int step = 34;
    int height = 170;
    Svg svg = new Svg(left + Math.max(4, layers.size()) * step + 10, height, title);
    svg.text(left, 13, "start", ".title", title);
    Scale y = Scale.linear(0, 1, height - 24, 24);
    for (double tick : new double[] {0, 0.25, 0.5, 0.75, 1}) {
      svg.line(left, y.at(tick), left + layers.size() * step, y.at(tick), ".grid");
      svg.text(left - 6, y.at(tick) + 4, "end", ".tick", Svg.format("%.0f %%", 100 * tick));
    }
    for (int i = 0; i < layers.size(); i++) {
      double x = left + i * step + 5;
      double reached = 0;
      for (Map.Entry<Integer, String> tier : TIERS.entrySet()) {
        double share = layers.get(i).share(tier.getKey());
        if (share > 0) {
          double top = y.at(reached + share);
          String tip = Svg.format("layer %d, %d bits: %.1f %%", i, tier.getKey(), 100 * share);
          svg.rectangle(x, top, 24, y.at(reached) - top, "fill:" + tier.getValue(), tip);
          reached += share;
        }
      }
      svg.text(x + 12, height - 9, "middle", ".tick", String.valueOf(i));
    }
    return svg.end();
  }

  private static void bar(Svg svg, double x, Scale y, double value, String colour, String name) {
    String tip = Svg.format("%s: %.1f %%", name, 100 * value);
    svg.rectangle(x, y.at(value), 12, y.at(0) - y.at(value), "fill:" + colour, tip);
  }

  private static void frame(Svg svg, Scale x, Scale y, String xTitle, String yTitle) {
    for (double tick : y.ticks()) {
      svg.line(x.at(-1e300), y.at(tick), x.at(1e300), y.at(tick), ".grid");
      svg.text(LEFT - 7, y.at(tick) + 4, "end", ".tick", Scale.text(tick));
    }
    for (double tick : x.ticks()) {
      svg.line(x.at(tick), HEIGHT - BOTTOM, x.at(tick), HEIGHT - BOTTOM + 5, ".axis");
      svg.text(x.at(tick), HEIGHT - BOTTOM + 18, "middle", ".tick", Scale.text(tick));
    }
    svg.line(x.at(-1e300), HEIGHT - BOTTOM, x.at(1e300), HEIGHT - BOTTOM, ".axis");
    svg.text((x.at(-1e300) + x.at(1e300)) / 2, HEIGHT - 9, "middle", ".note", xTitle);
    svg.rising(14, (TOP + HEIGHT - BOTTOM) / 2.0, ".note", yTitle);
  }

  /** The corners of the staircase of points that none beats. */
  private static double[] best(List<Point> points, Good good, Scale x, Scale y) {
    List<Point> sorted = new ArrayList<>(points);
    Comparator<Point> byQuality = Comparator.comparingDouble(Point::y);
    sorted.sort(
        Comparator.comparingDouble(Point::x).thenComparing(good == Good.UP ? byQuality.reversed() : byQuality));
    List<Double> places = new ArrayList<>();
    Double reached = null;
    for (Point point : sorted) {
      if (reached == null || (good == Good.UP ? point.y() > reached : point.y() < reached)) {
        if (reached != null) {
          places.add(x.at(point.x()));
          places.add(y.at(reached));
        }
        places.add(x.at(point.x()));
        places.add(y.at(point.y()));
        reached = point.y();
      }
    }
    return places.stream().mapToDouble(Double::doubleValue).toArray();
  }

  /** Writes a name beside a point where nothing is yet; where there is no room it stays a tool tip. */
  private static void label(Svg svg, String name, double x, double y, List<double[]> taken) {
    double width = 6.1 * name.length();
    double[][] tries = {
      {x + 9, y + 4, 0}, {x + 9, y - 7, 0}, {x + 9, y + 15, 0},
      {x - 9 - width, y + 4, 1}, {x - 9 - width, y - 7, 1}, {x - 9 - width, y + 15, 1},
      {x - width / 2, y - 11, 2}, {x - width / 2, y + 20, 2},
    };
    for (double[] place : tries) {
      double[] box = {place[0], place[1] - 10, place[0] + width, place[1] + 2};
      boolean inside = box[0] > LEFT && box[2] < WIDTH && box[1] > 2 && box[3] < HEIGHT - BOTTOM;
      boolean free =
          taken.stream().noneMatch(t -> box[0] < t[2] && t[0] < box[2] && box[1] < t[3] && t[1] < box[3]);
      if (inside && free) {
        taken.add(box);
        svg.text(place[0], place[1], "start", ".label", name);
        return;
      }
    }
  }

  /** From pale yellow over orange to dark violet: readable in grey as well. */
  static String colour(double share) {
    double[][] stops = {{255, 247, 214}, {254, 196, 106}, {240, 120, 72}, {176, 42, 92}, {62, 16, 84}};
    double at = Math.max(0, Math.min(1, share)) * (stops.length - 1);
    int below = Math.min(stops.length - 2, (int) at);
    StringBuilder out = new StringBuilder("rgb(");
    for (int i = 0; i < 3; i++) {
      double value = stops[below][i] + (at - below) * (stops[below + 1][i] - stops[below][i]);
      out.append(i == 0 ? "" : ",").append(Math.round(value));
    }
    return out.append(")").toString();
  }
}
