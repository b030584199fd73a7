package dev.kvasir.lab.report;

import dev.kvasir.runner.file.Json;
import dev.kvasir.lab.evaluate.Figure;
import dev.kvasir.lab.evaluate.Lengths;
import dev.kvasir.lab.evaluate.MethodResult;
import dev.kvasir.lab.evaluate.Outcome;
import dev.kvasir.internal.json.FileReplacement;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Writes an outcome as {@code evaluate.json}, {@code evaluate.csv} and {@code index.html}. Files are replaced whole, so
 * whoever reads them sees a finished one, however the program ends.
 */
public final class ResultFiles {

  private ResultFiles() {}

  /** Writes all of them into a folder, which is made if need be. */
  public static void write(Outcome outcome, Origin origin, Path folder) throws IOException {
    write(outcome, null, origin, folder);
  }

  /** The same, with what the model said on the page. */
  public static void write(Outcome outcome, @Nullable Transcript transcript, Origin origin, Path folder)
      throws IOException {
    Files.createDirectories(folder);
    replace(folder.resolve("evaluate.json"), json(outcome));
    replace(folder.resolve("evaluate.csv"), csv(outcome));
    replace(folder.resolve("index.html"), HtmlReport.of(outcome, transcript, origin));
  }

  private static void replace(Path file, String text) throws IOException {
    FileReplacement.write(file, text);
  }

  /**
   * A list with one object a method. Whatever was not measured is null. {@code errors} holds one standard error of each
   * figure by the same name; {@code bits} and {@code cache_bytes} speak of a sequence of {@code cache_tokens} tokens.
   */
  public static String json(Outcome outcome) {
    List<String> rows = new ArrayList<>();
    for (MethodResult result : outcome.results()) {
      rows.add(Json.write(row(outcome, result)));
    }
    return "[\n" + String.join(",\n", rows) + "\n]\n";
  }

  private static Map<String, Object> row(Outcome outcome, MethodResult result) {
    Map<String, Object> row = new LinkedHashMap<>();
    Map<String, Object> errors = new LinkedHashMap<>();
    row.put("method", result.method().name());
    row.put("bits", result.bits());
    for (int i = 0; i < Lengths.TOKENS.size(); i++) {
      row.put(lengthName(i), result.bitsAtLength(i));
    }
    row.put("perplexity", result.perplexity());
    put(row, errors, "bpb", result.bitsPerByte());
    put(row, errors, "bpb_far", result.bitsPerByteFar());
    put(row, errors, "kl", result.divergence());
    put(row, errors, "top1", result.agreement());
    Map<String, Object> tasks = new LinkedHashMap<>();
    Map<String, Object> taskErrors = new LinkedHashMap<>();
    Map<String, Object> graded = new LinkedHashMap<>();
    for (String task : result.taskNames()) {
      put(tasks, taskErrors, task, result.exact(task));
      Map<String, Object> grades = new LinkedHashMap<>();
      Map<String, Object> gradeErrors = new LinkedHashMap<>();
      grades.put("instances", result.exact(task).samples());
      put(grades, gradeErrors, "token_accuracy", result.tokenAccuracy(task));
      put(grades, gradeErrors, "correct_prefix", result.correctPrefix(task));
      grades.put("errors", gradeErrors);
      graded.put(task, grades);
    }
    errors.put("tasks", taskErrors);
    row.put("tasks", tasks);
    row.put("cache_bytes", result.cacheBytes());
    put(row, errors, "us_per_token", result.microsPerToken());
    row.put("attention_us_per_token", result.attentionMicros().value());
    row.put("graded", graded);
    Map<String, Object> texts = new LinkedHashMap<>();
    result.textNames().forEach(text -> texts.put(text, result.bitsPerByte(text).value()));
    row.put("texts", texts);
    Map<String, Object> byText = new LinkedHashMap<>();
    for (String text : result.textNames()) {
      Map<String, Object> figures = new LinkedHashMap<>();
      figures.put("kl", result.divergence(text).value());
      figures.put("kl_error", result.divergence(text).error());
      figures.put("perplexity", result.perplexity(text));
      byText.put(text, figures);
    }
    row.put("by_text", byText);
    row.put("windows", result.texts().size());
    row.put("page_bits", result.pageBits());
    row.put("codebook_bits", result.codebookBits());
    row.put("cache_tokens", result.cacheTokens());
    row.put("errors", errors);
    row.put("model", outcome.model());
    row.put("prompt", outcome.prompt().name().toLowerCase(Locale.ROOT));
    row.put("complete", outcome.complete() && result.failure() == null);
    if (result.failure() != null) {
      row.put("failure", result.failure());
    }
    return row;
  }

  private static void put(Map<String, Object> row, Map<String, Object> errors, String name, Figure figure) {
    row.put(name, figure.value());
    errors.put(name, figure.error());
  }

  /** One line a method, with columns for every task. */
  public static String csv(Outcome outcome) {
    List<String> header = new ArrayList<>(List.of("method", "bits"));
    for (int i = 0; i < Lengths.TOKENS.size(); i++) {
      header.add(lengthName(i));
    }
    header.addAll(List.of("page_bits", "codebook_bits", "perplexity", "bpb", "bpb_error", "bpb_far"));
    header.addAll(List.of("kl", "kl_error", "top1", "cache_bytes", "us_per_token", "attention_us_per_token"));
    for (String task : outcome.tasks()) {
      for (String column : List.of("exact", "exact_error", "token_accuracy", "correct_prefix")) {
        header.add(task + "_" + column);
      }
    }
    StringBuilder out = new StringBuilder(String.join(",", header)).append('\n');
    for (MethodResult result : outcome.results()) {
      List<Object> cells = new ArrayList<>(List.of(result.method().name(), result.bits()));
      for (int i = 0; i < Lengths.TOKENS.size(); i++) {
        cells.add(result.bitsAtLength(i));
      }
      cells.addAll(List.of(result.pageBits(), result.codebookBits(), result.perplexity()));
      cells.addAll(List.of(result.bitsPerByte().value(), result.bitsPerByte().error()));
      cells.addAll(List.of(result.bitsPerByteFar().value(), result.divergence().value(), result.divergence().error()));
      cells.addAll(List.of(result.agreement().value(), result.cacheBytes(), result.microsPerToken().value()));
      cells.add(result.attentionMicros().value());
      for (String task : outcome.tasks()) {
        cells.addAll(List.of(result.exact(task).value(), result.exact(task).error()));
        cells.addAll(List.of(result.tokenAccuracy(task).value(), result.correctPrefix(task).value()));
      }
      out.append(String.join(",", cells.stream().map(ResultFiles::cell).toList())).append('\n');
    }
    return out.toString();
  }

  private static String lengthName(int index) {
    return "bits_" + Lengths.TOKENS.get(index) / 1024 + "k";
  }

  /** Nothing for what was not measured. */
  private static String cell(Object value) {
    return value instanceof Double number && number.isNaN() ? "" : String.valueOf(value);
  }
}
