package dev.kvasir.micrometer;

import io.micrometer.core.instrument.Meter;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.Tags;

/** What meters are called in a registry. */
final class Names {

  private Names() {}

  /** A registry keeps the first meter of a name and its tags, and would show what was closed long ago. The newest is to be shown. */
  static void free(MeterRegistry registry, String name, Tags tags) {
    registry.removeByPreFilterId(new Meter.Id(name, tags, null, null, Meter.Type.OTHER));
  }
}
