package dev.kvasir.runner;

import dev.kvasir.KvSequence;
import dev.kvasir.prefix.PrefixMatch;
import dev.kvasir.prefix.PrefixRequest;
import dev.kvasir.prefix.Tenant;
import java.util.Arrays;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import org.jspecify.annotations.Nullable;

/**
 * One conversation of an {@link Engine}: tokens, of which the cache holds all but the last ones.
 *
 * <p>{@link #append} adds tokens, {@link #generate} lets the model read what is new and write on. Every method may be
 * called from any thread; while a generation runs, the conversation can only be looked at and cancelled.
 */
public final class Session implements AutoCloseable {

  /** A generation under way; its fields belong to the engine's thread, but where they say so. */
  static final class Run {
    final Generation wanted;
    final Sampler sampler;
    final CompletableFuture<Generation.Result> result = new CompletableFuture<>();
    /** Whether somebody ends it: the engine's thread or, where the engine was closed, that of a lookup. */
    final AtomicBoolean over = new AtomicBoolean();
    final TextStream stream = new TextStream();
    final StringBuilder text = new StringBuilder();
    final int begin;
    /** Tokens that came from the prefix cache. Set before the engine's thread sees the run. */
    int reused;

    /** What went wrong, if anything did. */
    @Nullable Throwable failure;

    volatile boolean cancelled;

    Run(Generation wanted, int begin) {
      this.wanted = wanted;
      this.sampler = new Sampler(wanted.sampling());
      this.begin = begin;
    }
  }

  private final Engine engine;
  private KvSequence sequence;
  // Changed under the session's own lock; by the engine's thread alone while there is a run.
  private int[] tokens;
  private int size;
  /** Tokens that the cache holds. One at least is always left for the next step, whose logits continue the text. */
  private int cached;
  private @Nullable Run run;
  private boolean closed;
  private @Nullable Tenant tenant;
  /** The first tokens that are everybody's where there is a tenant. */
  private int shared;

  Session(Engine engine, KvSequence sequence, int[] tokens, int size, int cached) {
    this.engine = engine;
    this.sequence = sequence;
    this.tokens = tokens;
    this.size = size;
    this.cached = cached;
  }

  /** The engine that the session is part of. */
  public Engine engine() {
    return engine;
  }

  /** A copy of all tokens, read and written. */
  public synchronized int[] tokens() {
    return Arrays.copyOf(tokens, size);
  }

  /** How many those are. */
  public synchronized int length() {
    return size;
  }

  /**
   * Adds tokens to the conversation; the next generation reads them.
   *
   * @throws IllegalArgumentException if one is not in the vocabulary, or they are more than the model was made for
   * @throws IllegalStateException if a generation is under way or the session is closed
   */
  public synchronized void append(int... added) {
    requireIdle();
    ModelConfig config = engine.model().config();
    for (int token : added) {
      if (token < 0 || token >= config.vocabulary()) {
        throw new IllegalArgumentException("token " + token + " of a vocabulary of " + config.vocabulary());
      }
    }
    if (added.length > config.maxPositions() - size) {
      throw new IllegalArgumentException(
          size + " tokens and " + added.length + " more; the model was made for " + config.maxPositions());
    }
    reserve(size + added.length);
    System.arraycopy(added, 0, tokens, size, added.length);
    size += added.length;
  }

  /**
   * Adds a text, after what the model expects before every text if it is the first. All or nothing.
   *
   * @throws IllegalArgumentException if there are more tokens than the model was made for
   * @throws IllegalStateException if a generation is under way or the session is closed
   */
  public void append(String text) {
    int[] prefix = engine.model().tokenizer().prefix();
    int[] encoded = engine.model().tokenizer().encode(text);
    int[] whole = Arrays.copyOf(prefix, prefix.length + encoded.length);
    System.arraycopy(encoded, 0, whole, prefix.length, encoded.length);
    synchronized (this) {
      append(size == 0 ? whole : encoded);
    }
  }

  /**
   * Says whose the conversation is, for an engine with a prefix cache: what it reads and writes is known to the same tenant's
   * sessions alone, but for the first tokens. Without a tenant it is everybody's.
   *
   * @param owner whose
   * @param sharedTokens how many of the first tokens are everybody's
   * @throws IllegalArgumentException if that is negative
   * @throws IllegalStateException if a generation is under way or the session is closed
   */
  public synchronized void tenant(Tenant owner, int sharedTokens) {
    requireIdle();
    if (sharedTokens < 0) {
      throw new IllegalArgumentException(sharedTokens + " shared tokens");
    }
    tenant = owner;
    shared = sharedTokens;
  }

  /**
   * Lets the model write on, beside the engine's other sessions.
   *
   * @return what it has written, once it is done; exceptional if its tokens do not fit the cache, or the listener threw.
   *     The conversation then is as before, with what had been written. Completed after the listener has heard of all
   *     tokens and the session is free again, and not by the engine's thread: what depends on it may wait for others
   * @throws IllegalStateException if there is no token yet, or more than the model was made for, a generation is under
   *     way, or the session is closed
   */
  public CompletableFuture<Generation.Result> generate(Generation wanted) {
    Run begun;
    synchronized (this) {
      requireIdle();
      if (size == 0) {
        throw new IllegalStateException("there is nothing to go on from");
      }
      int most = engine.model().config().maxPositions();
      if (size > most) { // the last is there to be seen, not to be read
        throw new IllegalStateException("there are " + size + " tokens; the model was made for " + most);
      }
      begun = new Run(wanted, size);
      run = begun;
    }
    try {
      engine.begin(this, begun);
    } catch (RuntimeException e) {
      synchronized (this) {
        run = null;
      }
      throw e;
    }
    return begun.result;
  }

  /** Ends the generation under way, if there is one, after its current step. */
  public synchronized void cancel() {
    if (run != null) {
      run.cancelled = true;
    }
  }

  /**
   * A second session with the same tokens; compressed pages are shared.
   *
   * @throws IllegalStateException if a generation is under way, the session is closed or the engine has no room for more
   */
  public Session fork() {
    KvSequence copy;
    Session fresh;
    synchronized (this) {
      requireIdle();
      copy = sequence.fork();
      fresh = new Session(engine, copy, tokens.clone(), size, cached);
      fresh.tenant = tenant;
      fresh.shared = shared;
    }
    try {
      return engine.adopt(fresh);
    } catch (RuntimeException e) {
      copy.close();
      throw e;
    }
  }

  /**
   * Forgets all tokens from {@code length} on.
   *
   * @throws IllegalArgumentException if it is negative or more than there are
   * @throws IllegalStateException if a generation is under way or the session is closed
   */
  public synchronized void truncate(int length) {
    requireIdle();
    if (length < 0 || length > size) {
      throw new IllegalArgumentException("length is " + length + ", not 0.." + size);
    }
    // The last token is run again, for its logits.
    int kept = Math.min(cached, Math.max(0, length - 1));
    if (kept < cached) {
      sequence.truncate(kept);
    }
    cached = kept;
    size = length;
  }

  /** Cancels what is under way and gives the memory back. */
  @Override
  public void close() {
    synchronized (this) {
      if (closed) {
        return;
      }
      closed = true;
      if (run != null) {
        run.cancelled = true; // the engine's thread ends it and releases
        return;
      }
    }
    engine.release(this);
  }

  synchronized KvSequence sequence() {
    return sequence;
  }

  /** What the prefix cache may know of: all tokens of a session that has read none yet, else null. */
  synchronized @Nullable PrefixRequest unread() {
    return cached == 0 ? request(size) : null;
  }

  /** The tokens that the cache holds. */
  synchronized PrefixRequest held() {
    return request(cached);
  }

  private PrefixRequest request(int count) {
    PrefixRequest all = PrefixRequest.of(Arrays.copyOf(tokens, count));
    return tenant == null ? all : all.tenant(tenant).shared(Math.min(shared, count));
  }

  /** Goes on from what was known, before the engine's thread sees the run, unless it has ended meanwhile. */
  synchronized void adopt(PrefixMatch match, Run waiting) {
    if (waiting.over.get()) {
      match.sequence().close();
      return;
    }
    KvSequence before = sequence;
    sequence = match.sequence();
    cached = match.reusedTokens();
    waiting.reused = cached;
    before.close();
  }

  synchronized @Nullable Run run() {
    return run;
  }

  synchronized boolean isClosed() {
    return closed;
  }

  /** Tokens that the next step has to read. */
  synchronized int pending() {
    return size - cached;
  }

  /** The next step for {@code count} of the pending tokens; with logits if those are all. */
  synchronized Decoder.Feed feed(int count) {
    return new Decoder.Feed(sequence, tokens, cached, count, count == size - cached ? 1 : 0);
  }

  synchronized void ran(int count) {
    cached += count;
  }

  /** Takes a token that was written. */
  synchronized void write(int token) {
    reserve(size + 1);
    tokens[size++] = token;
  }

  synchronized int[] history() {
    return tokens;
  }

  /** The end of a run. Returns whether the session was closed meanwhile. */
  synchronized boolean idle() {
    run = null;
    return closed;
  }

  private void reserve(int count) {
    if (count > tokens.length) {
      tokens = Arrays.copyOf(tokens, Math.max(count, tokens.length * 3 / 2));
    }
  }

  private void requireIdle() {
    if (closed) {
      throw new IllegalStateException("the session is closed");
    }
    if (run != null) {
      throw new IllegalStateException("a generation is under way");
    }
  }
}
