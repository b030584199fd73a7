package dev.kvasir.lab.cli;

import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;

/** Words that a user may have meant. */
final class Nearest {

  private static final int MOST = 3;

  private Nearest() {}

  /** The nearest words, best first. */
  static List<String> to(String word, Collection<String> words) {
    String wanted = word.toLowerCase(Locale.ROOT);
    return words.stream().sorted(Comparator.comparingInt(each -> distance(wanted, each))).limit(MOST).toList();
  }

  /** How many letters must be added, left out or changed to make one of the other. */
  static int distance(String from, String to) {
    int[] row = new int[to.length() + 1];
    for (int j = 0; j <= to.length(); j++) {
      row[j] = j;
    }
    for (int i = 1; i <= from.length(); i++) {
      int diagonal = row[0];
      row[0] = i;
      for (int j = 1; j <= to.length(); j++) {
        int change = diagonal + (from.charAt(i - 1) == to.charAt(j - 1) ? 0 : 1);
        diagonal = row[j];
        row[j] = Math.min(change, 1 + Math.min(row[j], row[j - 1]));
      }
    }
    return row[to.length()];
  }
}
