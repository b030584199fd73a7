package dev.kvasir.lab.report;

import dev.kvasir.lab.evaluate.Outcome;

final class HtmlReport {
  private HtmlReport() {}
  static String of(Outcome outcome) { return "<pre>" + TextTable.of(outcome) + "</pre>"; }
}
