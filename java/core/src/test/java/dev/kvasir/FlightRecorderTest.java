package dev.kvasir;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Collectors;
import jdk.jfr.Recording;
import jdk.jfr.consumer.RecordedEvent;
import jdk.jfr.consumer.RecordingFile;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class FlightRecorderTest {

  @Test
  void appendsAndAttendsAreRecorded(@TempDir Path folder) throws Exception {
    Path file = folder.resolve("events.jfr");
    float[] rows = new float[3 * 64];
    float[] queries = new float[4 * 128];
    try (Recording recording = new Recording();
        KvCache cache = Testing.cache(Testing.small()).build();
        KvSequence sequence = cache.newSequence()) {
      recording.enable("kvasir.Append").withoutThreshold();
      recording.enable("kvasir.Attend").withoutThreshold();
      recording.start();
      sequence.append(1, rows, rows, 3);
      cache.attend(1, List.of(sequence, sequence), queries, new float[4 * 128], 2);
      recording.stop();
      recording.dump(file);
    }
    RecordedEvent append = only(file, "kvasir.Append");
    assertEquals(1, append.getInt("layer"));
    assertEquals(3, append.getInt("tokens"));
    RecordedEvent attend = only(file, "kvasir.Attend");
    assertEquals(1, attend.getInt("layer"));
    assertEquals(2, attend.getInt("sequences"));
    assertEquals(2, attend.getInt("tokens"));
    Files.delete(file);
  }

  private static RecordedEvent only(Path file, String name) throws Exception {
    List<RecordedEvent> events =
        RecordingFile.readAllEvents(file).stream()
            .filter(event -> event.getEventType().getName().equals(name))
            .collect(Collectors.toList());
    assertEquals(1, events.size(), name);
    return events.get(0);
  }
}
