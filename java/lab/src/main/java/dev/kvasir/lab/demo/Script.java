package dev.kvasir.lab.demo;

import dev.kvasir.lab.sample.HiddenKeys;
import dev.kvasir.runner.file.Json;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.jspecify.annotations.Nullable;

/**
 * What the model has to do: a text with facts in it, questions about them, and something to write step by step. No method was
 * tuned on any of it.
 *
 * @param about what the text is
 * @param text what to read
 * @param questions what to ask then
 * @param program what to run, for models that have learned to; null where 16 bits write on in the text, a token a step, and
 *     others say what they would have written
 * @param steps what the run should say, a line each; none where what 16 bits write is the measure
 */
record Script(
    String about, String text, List<Question> questions, @Nullable String program, List<String> steps) {

  /**
   * A question and its answer.
   *
   * @param end what follows an answer
   */
  record Question(String text, String answer, String end) {}

  private static final Pattern FACT = Pattern.compile("^box (\\w+) holds (\\d+)$", Pattern.MULTILINE);
  private static final String ASK = "open ";

  /** For any model: keys to find in a text, and the text to go on with. */
  static Script of(HiddenKeys hidden) {
    List<Question> questions = new ArrayList<>();
    for (int i = 0; i < hidden.keys().size(); i++) {
      questions.add(new Question(hidden.questions().get(i), hidden.keys().get(i), "."));
    }
    return new Script("a book in which pass keys are hidden", hidden.text(), questions, null, List.of());
  }

  /**
   * For models that have learned such tasks. Takes the longest text with other lines between its facts, and the first program of at least so many steps.
   *
   * @param tests where {@code retrieval.jsonl} and {@code trace.jsonl} are
   * @param questions how many to ask, about facts spread over the text
   * @param steps of the program; a longer one is run to the end as well
   */
  static Script read(Path tests, int questions, int steps) throws IOException {
    String text = "";
    for (Json instance : instances(tests.resolve("retrieval.jsonl"))) {
      String prompt = instance.get("prompt").text();
      boolean longer = prompt.length() > text.length();
      boolean books = prompt.lines().anyMatch(line -> !line.startsWith("box ") && !line.startsWith(ASK));
      if (books && longer && prompt.contains(ASK)) {
        text = prompt.substring(0, prompt.lastIndexOf(ASK));
      }
    }
    List<Question> facts = new ArrayList<>();
    for (Matcher fact = FACT.matcher(text); fact.find(); ) {
      facts.add(new Question(ASK + fact.group(1) + ": ", fact.group(2), "\n"));
    }
    List<Question> asked = new ArrayList<>();
    for (int i = 0; i < Math.min(questions, facts.size()); i++) {
      asked.add(facts.get((2 * i + 1) * facts.size() / (2 * questions)));
    }
    for (Json instance : instances(tests.resolve("trace.jsonl"))) {
      List<String> lines = instance.get("answer").text().lines().toList();
      if (lines.size() >= steps && !asked.isEmpty()) {
        return new Script("facts between lines of books", text, asked, instance.get("prompt").text(), lines);
      }
    }
    throw new IOException(tests + " has no text with facts, or no program of " + steps + " steps");
  }

  private static List<Json> instances(Path file) throws IOException {
    List<Json> instances = new ArrayList<>();
    for (String line : Files.readAllLines(file, StandardCharsets.UTF_8)) {
      instances.add(Json.parse(line, file.toString()));
    }
    return instances;
  }
}
