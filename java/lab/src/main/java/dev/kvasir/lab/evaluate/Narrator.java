package dev.kvasir.lab.evaluate;

import dev.kvasir.KvSequence;
import dev.kvasir.runner.Decoder;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** A model at work on one sequence: it reads, and writes on, token by token as far as the cache can tell. */
public final class Narrator implements AutoCloseable {

  private final Decoder decoder;
  private final KvSequence sequence;
  private final float[] next;
  private double bits;
  private long bytes;

  /** Begins with what the model expects before every text. The session closes the sequence. */
  public Narrator(Decoder decoder, KvSequence sequence) {
    this.decoder = decoder;
    this.sequence = sequence;
    this.next = new float[decoder.model().config().vocabulary()];
    read(decoder.model().tokenizer().prefix());
    bits = 0;
    bytes = 0;
  }

  private Narrator(Narrator other) {
    this.decoder = other.decoder;
    this.sequence = other.sequence.fork();
    this.next = other.next.clone();
  }

  /** Another session that knows all that this one has read and written. */
  public Narrator fork() {
    return new Narrator(this);
  }

  /** Reads tokens, and counts how well the model foresaw them. */
  public void read(int... tokens) {
    if (tokens.length > 0) {
      score(tokens[0]);
    }
    for (int from = 0; from < tokens.length; ) {
      int count = Math.min(tokens.length - from, StreamRunner.together(sequence.cache(), (int) sequence.length()));
      decoder.decode(
          List.of(new Decoder.Feed(sequence, tokens, from, count, count)),
          (feed, token, logits) -> {
            System.arraycopy(logits, 0, next, 0, next.length);
            if (token + 1 < tokens.length) {
              score(tokens[token + 1]);
            }
          });
      from += count;
    }
  }

  /**
   * Writes the likeliest tokens.
   *
   * @param end where to stop: the text that ends with it is returned without it
   * @param most how many tokens to write at most
   */
  public String write(String end, int most) {
    ByteArrayOutputStream written = new ByteArrayOutputStream();
    for (int i = 0; i < most; i++) {
      int token = likeliest();
      written.writeBytes(decoder.model().tokenizer().decode(token));
      System.arraycopy(decoder.decode(sequence, token), 0, next, 0, next.length);
      String text = written.toString(StandardCharsets.UTF_8);
      if (text.endsWith(end)) {
        return text.substring(0, text.length() - end.length());
      }
    }
    return written.toString(StandardCharsets.UTF_8);
  }

  /** The token that it would write next. */
  public int likeliest() {
    return Scorer.likeliest(next);
  }

  /** Bits that the model needed per byte of all that it read. */
  public double bitsPerByte() {
    return bits / bytes;
  }

  /** Tokens read and written. */
  public long length() {
    return sequence.length();
  }

  @Override
  public void close() {
    sequence.close();
  }

  private void score(int token) {
    double highest = next[Scorer.likeliest(next)];
    double total = 0;
    for (float logit : next) {
      total += Math.exp(logit - highest);
    }
    bits += (highest + Math.log(total) - next[token]) / Math.log(2);
    bytes += decoder.model().tokenizer().decode(token).length;
  }
}
