package dev.kvasir.lab.report;

import java.util.Locale;

/** A drawing as inline SVG. Colours and fonts come from the page's style sheet by class, so that dark pages work. */
final class Svg {

  private final StringBuilder out = new StringBuilder();

  Svg(int width, int height, String title) {
    out.append(format("<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">", width, height, escape(title)));
  }

  /** Text that is safe in HTML and in attributes. */
  static String escape(String text) {
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\"", "&quot;");
  }

  static String format(String format, Object... arguments) {
    return String.format(Locale.ROOT, format, arguments);
  }

  Svg line(double x1, double y1, double x2, double y2, String style) {
    out.append(format("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>", x1, y1, x2, y2, style(style)));
    return this;
  }

  /** A line through points {@code x0 y0 x1 y1 ...}. */
  Svg path(double[] points, String style) {
    out.append("<polyline fill=\"none\" points=\"");
    for (int i = 0; i + 1 < points.length; i += 2) {
      out.append(format("%.1f,%.1f ", points[i], points[i + 1]));
    }
    out.append("\" ").append(style(style)).append("/>");
    return this;
  }

  Svg circle(double x, double y, double radius, String style, String tip) {
    out.append(format("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" %s>", x, y, radius, style(style)));
    return tip(tip, "circle");
  }

  Svg rectangle(double x, double y, double width, double height, String style, String tip) {
    out.append(
        format(
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" %s>",
            x, y, Math.max(0, width), Math.max(0, height), style(style)));
    return tip(tip, "rect");
  }

  /** Text at a point; {@code anchor} is start, middle or end. */
  Svg text(double x, double y, String anchor, String style, String text) {
    out.append(format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" %s>", x, y, anchor, style(style)));
    out.append(escape(text)).append("</text>");
    return this;
  }

  /** Text that reads upwards. */
  Svg rising(double x, double y, String style, String text) {
    out.append(
        format(
            "<text transform=\"translate(%.1f %.1f) rotate(-90)\" text-anchor=\"middle\" %s>", x, y, style(style)));
    out.append(escape(text)).append("</text>");
    return this;
  }

  String end() {
    return out.append("</svg>").toString();
  }

  private Svg tip(String tip, String element) {
    if (!tip.isEmpty()) {
      out.append("<title>").append(escape(tip)).append("</title>");
    }
    out.append("</").append(element).append(">");
    return this;
  }

  /** {@code .name} is a class of the style sheet, anything else a style. */
  private static String style(String style) {
    return (style.startsWith(".") ? "class=\"" + style.substring(1) : "style=\"" + style) + "\"";
  }
}
