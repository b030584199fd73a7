package dev.kvasir.jlama;

import com.github.tjake.jlama.model.AbstractModel;
import com.github.tjake.jlama.model.CausalSelfAttention;
import com.github.tjake.jlama.model.TransformerBlock;
import com.github.tjake.jlama.safetensors.Config;
import com.github.tjake.jlama.tensor.KvBufferCache;
import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.error.KvFileException;
import dev.kvasir.method.Uniform;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Objects;
import java.util.Set;
import java.util.UUID;
import java.util.function.UnaryOperator;

/**
 * A compressed cache for a model of Jlama that has been loaded, in one line and without a change to Jlama:
 *
 * <pre>{@code
 * JlamaCache cache = JlamaCache.attach(model);                       // 8 bits
 * JlamaCache cache = JlamaCache.attach(model, Uniform.bits(4));      // or any method
 * JlamaCache cache = JlamaCache.attachInside(chatModel, Uniform.bits(4));  // a chat model of LangChain4j
 * }</pre>
 *
 * <p>From then on the model computes attention on the compressed form. Sessions survive between calls: a second {@code
 * generate} with the same id goes on after what the first one read and wrote. Jlama's own cache counts only the tokens that a call
 * wrote, and drops what it holds when the call ends. Two habits of {@code generate} stay Jlama's: {@code ntokens} counts from
 * the beginning of the session, and each prompt begins with the token for a beginning.
 *
 * <p>Not to be attached or closed while the model generates. Methods may be called from any thread; one session can be used by
 * one thread at a time. But a model of Jlama 0.8.4 generates one answer at a time: of several at once, with its own cache or
 * this one, some fail and some come out otherwise, since its feed-forward layers have arrays that all calls share. The model
 * must be whole: parts of one that run on several machines are refused.
 */
public final class JlamaCache implements AutoCloseable {

  /** Sessions that are kept unless told otherwise. */
  public static final int DEFAULT_SESSIONS = 16;

  private final AbstractModel model;
  private final TransformerBlock[] ownBlocks;
  private final KvBufferCache ownBuffers;
  private final Sessions sessions;

  private JlamaCache(AbstractModel model, Sessions sessions) {
    this.model = model;
    this.ownBlocks = Hidden.blocks(model);
    this.ownBuffers = Hidden.buffers(model);
    this.sessions = sessions;
  }

  /**
   * Gives a model a cache of 8 bits.
   *
   * @param model the model
   * @return the cache, which is closed with the model, or before
   * @throws IllegalArgumentException if the model is a part of one, or has attention of a kind that is not Jlama's own
   */
  public static JlamaCache attach(AbstractModel model) {
    return builder(model).attach();
  }

  /**
   * Gives a model a cache.
   *
   * @param model the model
   * @param method how to compress
   * @return the cache, which is closed with the model, or before
   * @throws IllegalArgumentException if the model is a part of one, has attention of a kind that is not Jlama's own, or does
   *     not go with the method
   */
  public static JlamaCache attach(AbstractModel model, KvMethod method) {
    return builder(model).method(method).attach();
  }

  /**
   * Gives the model inside another library's object a cache: a chat model of LangChain4j. No session is kept, because
   * LangChain4j tells the whole conversation anew with each call.
   *
   * @param holder what holds a model of Jlama in a field
   * @param method how to compress
   * @return the cache, which is closed with the model, or before
   * @throws IllegalArgumentException if there is no model of Jlama in it, or as {@link #attach(AbstractModel, KvMethod)}
   */
  public static JlamaCache attachInside(Object holder, KvMethod method) {
    return builder(Hidden.modelInside(holder)).method(method).sessions(0).attach();
  }

  /**
   * A builder of a cache with a budget, or another number of sessions.
   *
   * @param model the model
   * @return a new builder
   */
  public static Builder builder(AbstractModel model) {
    return new Builder(model);
  }

  /**
   * The cache itself: statistics, method, budget.
   *
   * @return the cache
   */
  public KvCache cache() {
    return sessions.cache();
  }

  /**
   * The sessions that are kept now.
   *
   * @return a copy
   */
  public Set<UUID> sessions() {
    return sessions.names();
  }

  /**
   * The tokens of a session. It is the cache's: do not close it, and change it only while no call uses the session.
   *
   * @param session its id
   * @return the sequence
   * @throws IllegalArgumentException if there is no such session
   */
  public KvSequence sequence(UUID session) {
    KvSequence found = sessions.find(session);
    if (found == null) {
      throw new IllegalArgumentException("there is no session " + session);
    }
    return found;
  }

  /**
   * A buffer for those who call the model's {@code forward} and {@code batchForward} themselves.
   *
   * @param session its id; a new one begins an empty session
   * @return a buffer to be closed after the last call; the session stays
   * @throws IllegalStateException if the session is in use, or was let go to make room
   */
  public KvBufferCache.KvBuffer buffer(UUID session) {
    return sessions.getKvBuffer(Objects.requireNonNull(session, "session"));
  }

  /**
   * A second session that begins as the first one is now; compressed pages are shared.
   *
   * @param session its id
   * @param branch the id of the new one
   * @throws IllegalArgumentException if there is no such session
   * @throws IllegalStateException if the new id is taken
   */
  public void fork(UUID session, UUID branch) {
    Objects.requireNonNull(branch, "branch");
    sessions.add(branch, sequence(session).fork());
  }

  /**
   * Saves a session to a file, whole or not at all.
   *
   * @param session its id
   * @param path the file
   * @throws IllegalArgumentException if there is no such session
   * @throws IOException if it cannot be written
   */
  public void save(UUID session, Path path) throws IOException {
    sequence(session).save(path);
  }

  /**
   * A session from a file, of this or another process.
   *
   * @param session its id here
   * @param path what {@link #save} wrote
   * @throws KvFileException if the file is damaged, or of another kind of cache
   * @throws BudgetExceededException if there is no room
   * @throws IllegalStateException if the id is taken
   * @throws IOException if the file cannot be read
   */
  public void restore(UUID session, Path path) throws IOException {
    Objects.requireNonNull(session, "session");
    sessions.add(session, cache().restore(path));
  }

  /**
   * Ends a session. The next call with its id begins an empty one. Does nothing where there is none.
   *
   * @param session its id
   * @throws IllegalStateException if a call uses it
   */
  public void forget(UUID session) {
    sessions.forget(session);
  }

  /** Frees all sessions, and gives the model back its own attention and cache. Closing again does nothing. */
  @Override
  public void close() {
    if (Hidden.buffers(model) == sessions) {
      Hidden.blocks(model, ownBlocks);
      Hidden.buffers(model, ownBuffers);
    }
    sessions.close();
  }

  /** Settings. Not for use by several threads. */
  public static final class Builder {

    private final AbstractModel model;
    private KvMethod method = Uniform.bits(8);
    private int most = DEFAULT_SESSIONS;
    private UnaryOperator<KvCache.Builder> settings = UnaryOperator.identity();

    private Builder(AbstractModel model) {
      this.model = Objects.requireNonNull(model, "model");
    }

    /**
     * How to compress: {@code Uniform.bits(8)} unless told otherwise.
     *
     * @param method the method
     * @return this builder
     */
    public Builder method(KvMethod method) {
      this.method = Objects.requireNonNull(method, "method");
      return this;
    }

    /**
     * How many sessions survive between calls. Beyond that, and where a budget is full, those longest unused are let go;
     * asking for one of them is an error until it is forgotten.
     *
     * @param most the number; with 0 every call begins an empty session, and frees it at its end
     * @return this builder
     */
    public Builder sessions(int most) {
      if (most < 0) {
        throw new IllegalArgumentException("sessions is " + most + ", not 0 or more");
      }
      this.most = most;
      return this;
    }

    /**
     * Other settings of the cache: a budget, a backend, threads, the model's fingerprint.
     *
     * @param settings changes the builder that it gets
     * @return this builder
     */
    public Builder settings(UnaryOperator<KvCache.Builder> settings) {
      this.settings = Objects.requireNonNull(settings, "settings");
      return this;
    }

    /**
     * Makes the cache and gives it to the model.
     *
     * @return the cache, which is closed with the model, or before
     * @throws IllegalArgumentException if the model is a part of one, has attention of a kind that is not Jlama's own, or
     *     does not go with the method
     */
    public JlamaCache attach() {
      TransformerBlock[] own = Hidden.blocks(model);
      requireWhole(model.getConfig(), own);
      KvCache.Builder builder =
          KvCache.builder(geometry(model.getConfig())).method(method).keysBeforeRope(method.keysBeforeRope());
      KvCache cache = settings.apply(builder).build();
      JlamaCache attached = new JlamaCache(model, new Sessions(model, cache, most));
      Hidden.blocks(model, compressed(own, attached.sessions));
      Hidden.buffers(model, attached.sessions);
      return attached;
    }

    private void requireWhole(Config config, TransformerBlock[] blocks) {
      if (blocks == null || blocks.length != config.numberOfLayers || config.dctx().kvSegmentLength != config.kvLength) {
        throw new IllegalArgumentException("the model is a part of one");
      }
      for (TransformerBlock block : blocks) {
        Class<?> type = Hidden.ofBlock(block, "attention").getClass();
        if (type != CausalSelfAttention.class) {
          throw new IllegalArgumentException("the model's attention is of " + type.getName() + ", not Jlama's own");
        }
      }
    }

    private static KvGeometry geometry(Config config) {
      KvGeometry.Builder geometry =
          KvGeometry.builder()
              .layers(config.numberOfLayers)
              .queryHeads(config.numberOfHeads)
              .kvHeads(config.numberOfKeyValueHeads)
              .headDim(config.headSize);
      if (config.attentionMultiplier != null) {
        geometry.softmaxScale(config.attentionMultiplier);
      }
      if (config.attnLogitSoftCapping != null) {
        geometry.softCap(config.attnLogitSoftCapping);
      }
      return geometry.build();
    }

    /** Blocks with the same parts but for attention. */
    private TransformerBlock[] compressed(TransformerBlock[] blocks, Sessions sessions) {
      TransformerBlock[] compressed = new TransformerBlock[blocks.length];
      for (int i = 0; i < blocks.length; i++) {
        CausalSelfAttention own = Hidden.ofBlock(blocks[i], "attention");
        compressed[i] =
            new TransformerBlock(
                model,
                i,
                Hidden.ofBlock(blocks[i], "preAttentionNorm"),
                CompressedAttention.of(model, i, own, sessions),
                Hidden.ofBlock(blocks[i], "postAttentionNorm"),
                Hidden.ofBlock(blocks[i], "preFFNorm"),
                Hidden.ofBlock(blocks[i], "ffBlock"),
                Hidden.ofBlock(blocks[i], "postFFNorm"),
                Hidden.ofBlock(blocks[i], "preResponseNorm"));
      }
      return compressed;
    }
  }
}
