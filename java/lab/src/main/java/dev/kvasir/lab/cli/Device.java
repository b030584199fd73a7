package dev.kvasir.lab.cli;

import java.util.Locale;

/** Where a model runs while methods learn from it or are measured. */
enum Device {
  CPU,
  CUDA;

  /** Its name to a {@link dev.kvasir.runner.Decoder}. */
  String backend() {
    return name().toLowerCase(Locale.ROOT);
  }
}
