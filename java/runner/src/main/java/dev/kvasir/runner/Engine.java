package dev.kvasir.runner;

import dev.kvasir.KvCache;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.KvStats;
import dev.kvasir.Precision;
import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.file.ModelFingerprint;
import dev.kvasir.prefix.PrefixCache;
import dev.kvasir.prefix.PrefixMatch;
import dev.kvasir.prefix.PrefixRequest;
import dev.kvasir.prefix.PrefixStats;
import dev.kvasir.prefix.Tier;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.UnaryOperator;
import org.jspecify.annotations.Nullable;

/**
 * Serves many sessions of one model at once.
 *
 * <pre>{@code
 * try (Engine engine = Engine.builder(Model.load(path)).method(Uniform.bits(4)).build();
 *     Session session = engine.newSession()) {
 *   session.append("The Eiffel Tower is located in");
 *   System.out.println(session.generate(Generation.greedy(engine.model(), 32)).join().text());
 * }
 * }</pre>
 *
 * <p>One thread runs steps. A step takes one token of every session that writes, and of those that read a prompt, chunks
 * of it, up to a number of tokens; whoever was served goes to the back of the line, so nobody waits for more than a round
 * and a long prompt does not hold up the others. Where a prompt is cut does not depend on the others.
 *
 * <p>Sessions whose tokens do not fit the cache's budget fail alone; the others go on.
 */
public final class Engine implements AutoCloseable {

  private static final System.Logger LOG = System.getLogger(Engine.class.getName());

  /** How prompts are cut: so many tokens at once. */
  static final int CHUNK = 128;

  private final Model model;
  private final Decoder decoder;
  private final KvCache cache;
  private final @Nullable PrefixCache prefixes;
  private final int stepTokens;
  private final int maxSessions;
  private final Thread thread;
  private final AtomicLong read = new AtomicLong();
  private final AtomicLong written = new AtomicLong();

  // Of the engine's thread: what the logits of a step led to.
  private final Map<Session, Integer> chosen = new HashMap<>();
  /** Whether the last step left the first prompt of the line no room. */
  private boolean passedOver;

  // Under the engine's lock.
  private final Deque<Session> line = new ArrayDeque<>();
  private final Set<Session> sessions = new HashSet<>();
  private boolean closed;
  /** What ended the engine's thread, if not a close. */
  private @Nullable Throwable broken;

  private Engine(Builder builder) {
    this.model = builder.model;
    KvCache.Builder settings = KvCache.builder(model.geometry()).precision(builder.precision);
    if (builder.backend != null) {
      settings.backend(builder.backend);
    }
    if (builder.method != null) {
      settings.method(builder.method);
    }
    if (builder.budgetBytes > 0) {
      settings.budgetBytes(builder.budgetBytes);
    }
    if (builder.fingerprint != null) {
      settings.model(builder.fingerprint);
    }
    this.cache = settings.build();
    PrefixCache known = null;
    try {
      known = builder.prefixes == null ? null : builder.prefixes.apply(PrefixCache.builder(cache)).build();
      this.decoder = new Decoder(model, builder.backend == null ? "cpu" : builder.backend, builder.precision);
    } catch (RuntimeException | Error e) {
      if (known != null) {
        known.close();
      }
      cache.close();
      throw e;
    } catch (IOException e) {
      cache.close();
      throw new UncheckedIOException(e);
    }
    this.prefixes = known;
    this.stepTokens = builder.stepTokens;
    this.maxSessions = builder.maxSessions;
    this.thread = new Thread(this::serve, "kvasir-engine");
    thread.setDaemon(true);
    thread.start();
  }

  /** An engine for a model, with a 16-bit cache without a budget unless told otherwise. */
  public static Builder builder(Model model) {
    return new Builder(model);
  }

  /** Makes engines. */
  public static final class Builder {
    private final Model model;
    private @Nullable KvMethod method;
    private long budgetBytes;
    private @Nullable String backend;
    private Precision precision = Precision.EXACT;
    private int stepTokens = 512;
    private int maxSessions = 1024;
    private @Nullable ModelFingerprint fingerprint;
    private @Nullable UnaryOperator<PrefixCache.Builder> prefixes;

    private Builder(Model model) {
      this.model = model;
    }

    /** How the cache is compressed. */
    public Builder method(KvMethod wanted) {
      this.method = wanted;
      return this;
    }

    /** A hard limit for the cache. */
    public Builder budgetBytes(long bytes) {
      if (bytes < 1) {
        throw new IllegalArgumentException("a budget of " + bytes + " bytes");
      }
      this.budgetBytes = bytes;
      return this;
    }

    /**
     * Where the model runs, and its cache: {@code "cuda"}, or a name of {@link dev.kvasir.Kvasir#backends} for the cache
     * of a model that runs on the CPU, which is the default.
     */
    public Builder backend(String name) {
      this.backend = Objects.requireNonNull(name, "name");
      return this;
    }

    /**
     * How closely attention computes and, on a GPU, products: {@link Precision#EXACT} ones are of activations as pairs of
     * bfloat16, which is 16 bits of each, {@link Precision#FAST} ones of plain bfloat16.
     */
    public Builder precision(Precision wanted) {
      this.precision = Objects.requireNonNull(wanted, "wanted");
      return this;
    }

    /** Most tokens of a step: more read prompts faster, fewer let writers wait less. At least a chunk, 128. */
    public Builder stepTokens(int tokens) {
      if (tokens < CHUNK) {
        throw new IllegalArgumentException("stepTokens is " + tokens + ", not " + CHUNK + " or more");
      }
      this.stepTokens = tokens;
      return this;
    }

    /** Most sessions that may exist at once. */
    public Builder maxSessions(int count) {
      if (count < 1) {
        throw new IllegalArgumentException("maxSessions is " + count + ", not 1 or more");
      }
      this.maxSessions = count;
      return this;
    }

    /**
     * Sessions reuse what others have read: a session that has read nothing looks for its tokens first, aside, and begins
     * where what is known ends. What is read and written is known from then on. {@code docs/prefix.md} has the details.
     *
     * @param weights which model this is, for stores that outlive the engine
     * @param settings what to set; all has a default
     * @return this builder
     */
    public Builder prefixes(ModelFingerprint weights, UnaryOperator<PrefixCache.Builder> settings) {
      this.fingerprint = Objects.requireNonNull(weights, "weights");
      this.prefixes = Objects.requireNonNull(settings, "settings");
      return this;
    }

    /**
     * Starts the engine.
     *
     * @throws UncheckedIOException if the folder of a prefix cache cannot be made or read
     */
    public Engine build() {
      return new Engine(this);
    }
  }

  /** The model. */
  public Model model() {
    return model;
  }

  /** The statistics of its cache. */
  public KvStats stats() {
    return cache.stats();
  }

  /** What its prefix cache has done, if it has one. */
  public Optional<PrefixStats> prefixStats() {
    return Optional.ofNullable(prefixes).map(PrefixCache::stats);
  }

  /** Tokens read so far, prompts alone. */
  public long tokensRead() {
    return read.get();
  }

  /** Tokens written so far. */
  public long tokensWritten() {
    return written.get();
  }

  /**
   * A conversation without tokens.
   *
   * @throws IllegalStateException if there are as many sessions as may be, or the engine is closed
   */
  public Session newSession() {
    KvSequence sequence = cache.newSequence();
    try {
      return adopt(new Session(this, sequence, new int[64], 0, 0));
    } catch (RuntimeException e) {
      sequence.close();
      throw e;
    }
  }

  /** Ends what is under way, as cancelled, and closes sessions and cache. Results come then, or shortly after. */
  @Override
  public void close() {
    List<Session> left;
    synchronized (this) {
      closed = true;
      left = new ArrayList<>(sessions);
      left.forEach(Session::cancel);
      notifyAll();
    }
    boolean interrupted = false;
    while (thread.isAlive() && Thread.currentThread() != thread) {
      try {
        thread.join();
      } catch (InterruptedException e) {
        interrupted = true;
      }
    }
    if (interrupted) {
      Thread.currentThread().interrupt();
    }
    left.forEach(Session::close);
    if (prefixes != null) {
      prefixes.close();
    }
    cache.close();
    decoder.close();
  }

  synchronized Session adopt(Session fresh) {
    requireOpen();
    if (sessions.size() >= maxSessions) {
      throw new IllegalStateException("there are " + maxSessions + " sessions, as many as may be");
    }
    sessions.add(fresh);
    return fresh;
  }

  /** Puts a session in line, after what is known of its tokens has been looked for: on other threads than the engine's. */
  void begin(Session session, Session.Run run) {
    PrefixRequest request = prefixes == null ? null : session.unread();
    if (request == null) {
      enqueue(session);
      return;
    }
    synchronized (this) {
      requireOpen();
    }
    CompletableFuture<PrefixMatch> lookup;
    try {
      lookup = prefixes.lookupAsync(request);
    } catch (RejectedExecutionException e) { // nobody has time to look
      enqueue(session);
      return;
    }
    lookup.whenComplete(
        (match, failure) -> {
          try {
            if (match != null) {
              session.adopt(match, run);
            }
            enqueue(session);
          } catch (IllegalStateException e) { // closed meanwhile
            finish(session, run, Generation.End.CANCELLED);
          }
        });
  }

  /** Makes known what a session has read so far, where that can be: it is of use to others alone, and fails nobody. */
  private void publish(Session session) {
    if (prefixes != null && !session.isClosed()) {
      try {
        prefixes.publish(session.sequence(), session.held());
      } catch (BudgetExceededException | IllegalStateException e) {
        return; // then it is not known
      } catch (RuntimeException e) {
        LOG.log(System.Logger.Level.WARNING, "what a session has read was not made known: " + e);
      }
    }
  }

  synchronized void enqueue(Session session) {
    requireOpen();
    line.add(session);
    notifyAll();
  }

  void release(Session session) {
    synchronized (this) {
      sessions.remove(session);
    }
    session.sequence().close();
  }

  private void requireOpen() {
    if (closed) {
      throw new IllegalStateException("the engine is closed", broken);
    }
  }

  /** A session's part of a step. */
  private record Part(Session session, Decoder.Feed feed) {}

  /** The engine's thread. However it ends, nobody waits for a result that does not come. */
  private void serve() {
    Throwable cause = null;
    try {
      runSteps();
    } catch (RuntimeException | Error e) {
      LOG.log(System.Logger.Level.ERROR, "the engine ends by a failure", e);
      cause = e;
    }
    List<Session> left;
    synchronized (this) {
      closed = true;
      broken = cause;
      line.clear();
      left = List.copyOf(sessions);
    }
    // After a close these are sessions whose lookup is under way. Executors that end drop lookups, so it may never end.
    for (Session session : left) {
      Session.Run run = session.run();
      if (run == null) {
        continue;
      }
      if (cause == null) {
        finish(session, run, Generation.End.CANCELLED);
      } else {
        run.over.set(true); // what ended the thread may have come from ending this very run
        conclude(session, run, null, cause);
      }
    }
  }

  /** Returns when the engine is closed and nobody is in line. */
  private void runSteps() {
    while (true) {
      List<Session> cancelled;
      List<Part> step;
      synchronized (this) {
        while (line.isEmpty() && !closed) {
          try {
            wait();
          } catch (InterruptedException e) {
            continue; // only a close ends this thread
          }
        }
        if (line.isEmpty()) {
          return;
        }
        cancelled = line.stream().filter(session -> closed || session.run().cancelled).toList();
        line.removeAll(cancelled);
        step = plan();
      }
      // Without the lock: whoever waits for a result may do anything.
      cancelled.forEach(session -> finish(session, session.run(), Generation.End.CANCELLED));
      if (!step.isEmpty()) {
        run(step);
      }
    }
  }

  /**
   * Takes sessions off the line: one token of each writer, then chunks of prompts, as far as there is room. Writers may
   * leave no room for a chunk, so the first prompt goes before them where the last step passed it over.
   */
  private List<Part> plan() {
    List<Part> step = new ArrayList<>();
    Session first = line.stream().filter(session -> session.pending() > 1).findFirst().orElse(null);
    int room = stepTokens;
    if (passedOver && first != null) {
      line.remove(first);
      room -= take(first, step);
    }
    for (boolean prompts : new boolean[] {false, true}) {
      for (Iterator<Session> all = line.iterator(); all.hasNext() && room > 0; ) {
        Session session = all.next();
        int count = chunk(session);
        if (count > 1 == prompts && count <= room) {
          all.remove();
          room -= take(session, step);
        }
      }
    }
    passedOver = line.contains(first);
    return step;
  }

  private static int chunk(Session session) {
    return Math.min(session.pending(), CHUNK);
  }

  /** Adds a session's next tokens to a step and returns how many those are. */
  private static int take(Session session, List<Part> step) {
    int count = chunk(session);
    step.add(new Part(session, session.feed(count)));
    return count;
  }

  private void run(List<Part> step) {
    try {
      decoder.decode(step.stream().map(Part::feed).toList(), new Choices(step));
    } catch (RuntimeException | OutOfMemoryError e) {
      // The cache is as before. Whoever fails alone is to blame; one that had been served already is in no part.
      if (e instanceof BudgetExceededException full && release(full)) {
        run(step);
      } else if (step.size() == 1) {
        fail(step.get(0).session(), e);
      } else {
        step.forEach(part -> run(List.of(part)));
      }
      return;
    }
    for (Part part : step) {
      try {
        advance(part);
      } catch (RuntimeException | OutOfMemoryError e) {
        fail(part.session(), e);
      }
    }
  }

  /** Whether prefixes that nobody uses have made room. */
  private boolean release(BudgetExceededException full) {
    if (prefixes == null) {
      return false;
    }
    long before = prefixBytes();
    prefixes.release(Math.max(full.bytesNeeded(), 1));
    return prefixBytes() < before;
  }

  private long prefixBytes() {
    return prefixes.stats().tiers().get(Tier.POOL).holdings().bytes();
  }

  /** Takes note that a part was run, and puts its session back in line or ends its generation. */
  private void advance(Part part) {
    Session session = part.session();
    Session.Run run = session.run();
    int count = part.feed().count();
    session.ran(count);
    (count == 1 && session.length() > run.begin ? written : read).addAndGet(count);
    if (part.feed().wanted() == 1 && session.length() == run.begin) {
      publish(session); // the prompt: others need not wait for what is written
    }
    Generation.End end = part.feed().wanted() == 1 ? ended(session, run) : null;
    if (end != null) {
      finish(session, run, end);
      return;
    }
    synchronized (this) {
      line.add(session);
    }
  }

  /** Chooses the next tokens of a step's sessions. */
  private final class Choices implements Decoder.LogitSink {
    private final List<Part> step;

    Choices(List<Part> step) {
      this.step = step;
    }

    @Override
    public boolean wantsToken(int feed) {
      return run(feed).wanted.sampling().isGreedy();
    }

    @Override
    public void accept(int feed, int token, float[] logits) {
      Session session = step.get(feed).session();
      try {
        chosen.put(session, run(feed).sampler.next(logits, session.history(), session.length()));
      } catch (IllegalArgumentException e) {
        run(feed).failure = e; // the session's own, which the others do not see
      }
    }

    @Override
    public void likeliest(int feed, int token, int likeliest) {
      if (likeliest < 0) {
        run(feed).failure = new IllegalArgumentException("the highest logit is no finite number");
      } else {
        chosen.put(step.get(feed).session(), likeliest);
      }
    }

    private Session.Run run(int feed) {
      return step.get(feed).session().run();
    }
  }

  private Generation.@Nullable End ended(Session session, Session.Run run) {
    Integer token = chosen.remove(session);
    if (token == null) {
      return Generation.End.CANCELLED;
    }
    session.write(token);
    String text = run.stream.add(model.tokenizer().decode(token));
    run.text.append(text);
    if (run.wanted.listener() != null) {
      try {
        run.wanted.listener().written(token, text);
      } catch (RuntimeException | Error e) {
        run.failure = e;
        return Generation.End.CANCELLED;
      } finally {
        Thread.interrupted(); // the thread is the engine's: only a close ends it
      }
    }
    if (run.wanted.stops().contains(token)) {
      return Generation.End.STOP;
    }
    boolean full = session.length() >= model.config().maxPositions();
    return full || session.length() - run.begin >= run.wanted.maxTokens() ? Generation.End.LENGTH : null;
  }

  /** Ends a run with what it has written, or with what went wrong meanwhile. */
  private void finish(Session session, Session.Run run, Generation.End end) {
    if (run.over.getAndSet(true)) {
      return;
    }
    Generation.Result written = null;
    Throwable failure = run.failure;
    try {
      publish(session);
      written = written(session, run, end);
    } catch (RuntimeException | OutOfMemoryError e) {
      failure = failure == null ? e : failure;
    }
    conclude(session, run, written, failure);
  }

  private static Generation.Result written(Session session, Session.Run run, Generation.End end) {
    run.text.append(run.stream.rest());
    int[] all = session.tokens();
    List<Integer> fresh = new ArrayList<>();
    for (int i = run.begin; i < all.length; i++) {
      fresh.add(all[i]);
    }
    return new Generation.Result(List.copyOf(fresh), run.text.toString(), end, run.reused);
  }

  private void fail(Session session, Throwable cause) {
    Session.Run run = session.run();
    chosen.remove(session);
    if (run != null && !run.over.getAndSet(true)) {
      conclude(session, run, null, cause);
    }
  }

  /** Sets the session free, then completes the result: aside, as what depends on it may wait for the engine. */
  private void conclude(
      Session session, Session.Run run, Generation.@Nullable Result written, @Nullable Throwable failure) {
    try {
      if (session.idle()) {
        release(session);
      }
    } catch (RuntimeException e) {
      LOG.log(System.Logger.Level.WARNING, "a session's memory was not given back: " + e);
    }
    Runnable completion =
        failure == null ? () -> run.result.complete(written) : () -> run.result.completeExceptionally(failure);
    try {
      run.result.defaultExecutor().execute(completion);
    } catch (RejectedExecutionException | OutOfMemoryError e) {
      completion.run(); // there is no other thread to be had: rather here than never
    }
  }
}
