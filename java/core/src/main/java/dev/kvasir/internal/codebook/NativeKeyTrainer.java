package dev.kvasir.internal.codebook;

import dev.kvasir.internal.jni.KeyTrainer;

/** See KeyTrainer in commvq_training.h. Sizes of arrays have been checked by callers. */
public final class NativeKeyTrainer extends NativeObject<KeyTrainer> implements NativeTrainer {

  private final int kvHeads;

  public NativeKeyTrainer(int kvHeads, int headDim, int pairs, int stages, int entries, long seed) {
    super(
        "the key trainer",
        memory -> KeyTrainer.create(kvHeads, headDim, pairs, stages, entries, seed),
        KeyTrainer::destroy);
    this.kvHeads = kvHeads;
  }

  public void setSteps(int steps) {
    run(target -> target.set_steps(steps));
  }

  public void setTemperatures(double first, double second, double last) {
    run(target -> target.set_temperatures(first, second, last));
  }

  @Override
  public void add(float[] rows, int tokens, int elements) {
    runWith((target, memory) -> target.add(memory.in(rows, elements), tokens));
  }

  @Override
  public boolean step() {
    return call(KeyTrainer::step);
  }

  @Override
  public double done() {
    return call(KeyTrainer::done);
  }

  /** Of all heads: the least of the stage in work, or that of the last stage that is done. */
  @Override
  public double error() {
    return call(
        target -> {
          double sum = 0;
          for (int head = 0; head < kvHeads; head++) {
            double inWork = target.stage_error(head);
            sum += Double.isInfinite(inWork) ? target.error(head, target.stage(head)) : inWork;
          }
          return sum / kvHeads;
        });
  }

  public double error(int kvHead, int stage) {
    return call(target -> target.error(kvHead, stage));
  }

  public void readTables(float[] out) {
    runWith((target, memory) -> target.read_tables(memory.out(out)));
  }
}
