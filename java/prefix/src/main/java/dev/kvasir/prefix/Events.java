package dev.kvasir.prefix;

import jdk.jfr.Category;
import jdk.jfr.DataAmount;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.FlightRecorder;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;
import org.jspecify.annotations.Nullable;

/** Flight recorder events. Before a program starts its first recording they cost one read of a field. */
final class Events {

  private Events() {}

  static @Nullable Lookup beginLookup(int tokens) {
    if (!FlightRecorder.isInitialized()) {
      return null;
    }
    Lookup event = new Lookup();
    event.tokens = tokens;
    event.begin();
    return event;
  }

  static void end(@Nullable Lookup event, PrefixMatch match) {
    if (event != null) {
      event.reused = match.reusedTokens();
      event.pool = match.tokensByTier().getOrDefault(Tier.POOL, 0);
      event.host = match.tokensByTier().getOrDefault(Tier.HOST, 0);
      event.folder = match.tokensByTier().getOrDefault(Tier.FOLDER, 0);
      event.remote = match.tokensByTier().getOrDefault(Tier.REMOTE, 0);
      event.commit();
    }
  }

  static @Nullable Publish beginPublish() {
    if (!FlightRecorder.isInitialized()) {
      return null;
    }
    Publish event = new Publish();
    event.begin();
    return event;
  }

  static void end(@Nullable Publish event, int blocks, long bytes) {
    if (event != null) {
      event.blocks = blocks;
      event.bytes = bytes;
      event.commit();
    }
  }

  @Name("kvasir.PrefixLookup")
  @Label("Prefix Lookup")
  @Category("Kvasir")
  @Description("A known prefix of a prompt was looked for")
  @StackTrace(false)
  static final class Lookup extends Event {
    @Label("Tokens")
    int tokens;

    @Label("Reused Tokens")
    int reused;

    @Label("Tokens from the Pool")
    int pool;

    @Label("Tokens from Host Memory")
    int host;

    @Label("Tokens from the Folder")
    int folder;

    @Label("Tokens from the Remote Store")
    int remote;
  }

  @Name("kvasir.PrefixPublish")
  @Label("Prefix Publish")
  @Category("Kvasir")
  @Description("Blocks of a sequence were brought to the tiers below the pool")
  @StackTrace(false)
  static final class Publish extends Event {
    @Label("Blocks")
    int blocks;

    @Label("Bytes")
    @DataAmount
    long bytes;
  }
}
