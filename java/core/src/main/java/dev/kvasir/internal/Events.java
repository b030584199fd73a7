package dev.kvasir.internal;

import jdk.jfr.Category;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.FlightRecorder;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;
import org.jspecify.annotations.Nullable;

/**
 * Flight recorder events around native work. Before a program starts its first recording they cost one read of a field:
 * event classes take the JVM tenths of a second to initialise, so none is touched until then.
 */
final class Events {

  private Events() {}

  static @Nullable Append beginAppend(int layer, int tokens) {
    if (!FlightRecorder.isInitialized()) {
      return null;
    }
    Append event = new Append();
    event.layer = layer;
    event.tokens = tokens;
    event.begin();
    return event;
  }

  static @Nullable Attend beginAttend(int layer, int sequences, int tokens) {
    if (!FlightRecorder.isInitialized()) {
      return null;
    }
    Attend event = new Attend();
    event.layer = layer;
    event.sequences = sequences;
    event.tokens = tokens;
    event.begin();
    return event;
  }

  static @Nullable Load beginLoad() {
    if (!FlightRecorder.isInitialized()) {
      return null;
    }
    Load event = new Load();
    event.begin();
    return event;
  }

  static void end(@Nullable Event event) {
    if (event != null) {
      event.commit();
    }
  }

  @Name("kvasir.Append")
  @Label("KV Append")
  @Category("Kvasir")
  @Description("Token rows entered a sequence")
  @StackTrace(false)
  static final class Append extends Event {
    @Label("Layer")
    int layer;

    @Label("Tokens")
    int tokens;
  }

  @Name("kvasir.Attend")
  @Label("KV Attend")
  @Category("Kvasir")
  @Description("Attention was computed on compressed sequences")
  @StackTrace(false)
  static final class Attend extends Event {
    @Label("Layer")
    int layer;

    @Label("Sequences")
    int sequences;

    @Label("Query Tokens per Sequence")
    int tokens;
  }

  @Name("kvasir.Load")
  @Label("Native Library Load")
  @Category("Kvasir")
  @Description("The native library was loaded")
  @StackTrace(false)
  static final class Load extends Event {
    @Label("Library")
    String library = "";

    @Label("Classifier")
    String classifier = "";
  }
}
