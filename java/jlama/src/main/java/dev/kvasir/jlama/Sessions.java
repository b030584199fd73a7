package dev.kvasir.jlama;

import com.github.tjake.jlama.model.AbstractModel;
import com.github.tjake.jlama.tensor.KvBufferCache;
import com.github.tjake.jlama.tensor.KvasirBuffer;
import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.error.BudgetExceededException;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import org.jspecify.annotations.Nullable;

/**
 * The sequences of sessions, those longest unused first. Where there are too many, or no room is left, sessions that nobody
 * uses are let go; who asks for one of them later is told, and gets no session that has forgotten what was said.
 */
final class Sessions extends KvBufferCache {

  /** Names of sessions that were let go are forgotten, too, after so many others. */
  private static final int REMEMBERED = 1 << 16;

  private final KvCache cache;
  private final int most;
  private final Map<UUID, Session> open = new LinkedHashMap<>(16, 0.75f, true);
  private final Set<UUID> gone = new LinkedHashSet<>();

  Sessions(AbstractModel model, KvCache cache, int most) {
    super(model);
    this.cache = cache;
    this.most = most;
  }

  KvCache cache() {
    return cache;
  }

  /** What Jlama calls when it begins to generate; it closes the buffer when it has ended. */
  @Override
  public synchronized KvBuffer getKvBuffer(UUID id) {
    if (most == 0) {
      return getEphemeralKvBuffer();
    }
    Session session = open.get(id);
    if (session == null) {
      if (gone.contains(id)) {
        throw new IllegalStateException(
            "session " + id + " was let go to make room: keep more sessions, or forget it to begin anew");
      }
      session = new Session(cache.newSequence());
      open.put(id, session);
    }
    if (session.used) {
      throw new IllegalStateException("session " + id + " is in use");
    }
    session.used = true;
    letGo(most);
    Session opened = session;
    return new KvasirBuffer(this, id, session.sequence, () -> end(opened));
  }

  @Override
  public KvBuffer getEphemeralKvBuffer() {
    KvSequence sequence = cache.newSequence();
    return new KvasirBuffer(this, UUID.randomUUID(), sequence, sequence::close);
  }

  /** Frees everything; Jlama calls it when the model is closed. */
  @Override
  public synchronized void close() {
    open.clear();
    gone.clear();
    cache.close();
  }

  /** Appends; where the budget is full, at the cost of sessions that nobody uses. */
  void append(KvSequence sequence, int layer, float[] keys, float[] values, int tokens) {
    while (true) {
      try {
        sequence.append(layer, keys, values, tokens);
        return;
      } catch (BudgetExceededException e) {
        if (!letOneGo()) {
          throw e;
        }
      }
    }
  }

  synchronized Set<UUID> names() {
    return Set.copyOf(open.keySet());
  }

  synchronized @Nullable KvSequence find(UUID id) {
    Session session = open.get(id);
    return session == null ? null : session.sequence;
  }

  /** Adds a sequence under a name that is free. Closes it where it is not. */
  synchronized void add(UUID id, KvSequence sequence) {
    if (most == 0 || open.containsKey(id)) {
      sequence.close();
      throw new IllegalStateException(most == 0 ? "no sessions are kept" : "session " + id + " exists");
    }
    gone.remove(id);
    Session added = new Session(sequence);
    open.put(id, added);
    added.used = true; // where all others are in use, it is not the one to go
    letGo(most);
    added.used = false;
  }

  synchronized void forget(UUID id) {
    Session session = open.get(id);
    if (session != null) {
      if (session.used) {
        throw new IllegalStateException("session " + id + " is in use");
      }
      session.sequence.close();
      open.remove(id);
    }
    gone.remove(id);
  }

  private synchronized void end(Session session) {
    session.used = false;
  }

  private synchronized boolean letOneGo() {
    int before = open.size();
    letGo(before - 1);
    return open.size() < before;
  }

  /** Until so many are left, or all that are left are in use. */
  private void letGo(int left) {
    Iterator<Map.Entry<UUID, Session>> oldest = open.entrySet().iterator();
    while (open.size() > left && oldest.hasNext()) {
      Map.Entry<UUID, Session> entry = oldest.next();
      if (!entry.getValue().used) {
        entry.getValue().sequence.close();
        oldest.remove();
        remember(entry.getKey());
      }
    }
  }

  private void remember(UUID id) {
    gone.add(id);
    if (gone.size() > REMEMBERED) {
      Iterator<UUID> oldest = gone.iterator();
      oldest.next();
      oldest.remove();
    }
  }

  private static final class Session {
    final KvSequence sequence;
    boolean used;

    Session(KvSequence sequence) {
      this.sequence = sequence;
    }
  }
}
