package dev.kvasir.lab.demo;

import dev.kvasir.KvCache;
import dev.kvasir.lab.evaluate.MethodEntry;
import dev.kvasir.lab.evaluate.Narrator;
import dev.kvasir.runner.Decoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** One method going through the script, with a cache of its own. */
final class Player implements AutoCloseable {

  private final MethodEntry method;
  private final Decoder decoder;
  private final KvCache cache;
  private final Narrator reading;
  private final List<String> answers = new ArrayList<>();
  private final List<String> steps = new ArrayList<>();
  private Narrator running;
  private double readingBytes;
  private double readingBits;

  Player(MethodEntry method, Decoder decoder, MethodEntry.Request request) {
    this.method = method;
    this.decoder = decoder;
    this.cache = method.factory().create(request);
    this.reading = new Narrator(decoder, cache.newSequence());
  }

  MethodEntry method() {
    return method;
  }

  /** Reads on in the text. */
  void read(int[] tokens) {
    reading.read(tokens);
    readingBytes = cache.stats().bytes();
    readingBits = cache.stats().total().bitsPerElement();
  }

  /** Answers a question. The next one is asked as if this had not been. */
  void answer(Script.Question question) {
    try (Narrator fork = reading.fork()) {
      fork.read(decoder.model().tokenizer().encode(question.text()));
      answers.add(fork.write(question.end(), question.answer().length() + 2).strip()); // a blank before, the end behind
    }
  }

  /** Reads a program, with an empty memory; or goes on with the text, where there is none. */
  void begin(@Nullable String program) {
    if (program == null) {
      running = reading.fork();
    } else {
      running = new Narrator(decoder, cache.newSequence());
      running.read(decoder.model().tokenizer().encode(program));
    }
  }

  /** Writes the next line of a run. */
  void line(int most) {
    steps.add(running.write("\n", most));
  }

  /** The token that it would write next. */
  int next() {
    return running.likeliest();
  }

  /** Says what it would write next, and reads what comes instead. */
  void token(int token) {
    steps.add(new String(decoder.model().tokenizer().decode(next()), StandardCharsets.UTF_8));
    running.read(token);
  }

  /** Bytes of the text that has been read. */
  double bytes() {
    return readingBytes;
  }

  /** Bits per element of the same. */
  double bits() {
    return readingBits;
  }

  double bitsPerByte() {
    return reading.bitsPerByte();
  }

  List<String> answers() {
    return answers;
  }

  List<String> steps() {
    return steps;
  }

  @Override
  public void close() {
    cache.close();
  }
}
