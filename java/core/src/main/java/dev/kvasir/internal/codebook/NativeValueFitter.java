package dev.kvasir.internal.codebook;

import dev.kvasir.internal.jni.ValueFitter;

/** See ValueFitter in commvq_training.h. Sizes of arrays have been checked by callers. */
public final class NativeValueFitter extends NativeObject<ValueFitter> implements NativeTrainer {

  public NativeValueFitter(int width, int codes) {
    super("the value fitter", memory -> ValueFitter.create(width, codes), ValueFitter::destroy);
  }

  public void setSteps(int steps) {
    run(target -> target.set_steps(steps));
  }

  @Override
  public void add(float[] rows, int tokens, int elements) {
    runWith((target, memory) -> target.add(memory.in(rows, elements), tokens));
  }

  @Override
  public boolean step() {
    return call(ValueFitter::step);
  }

  @Override
  public double done() {
    return call(ValueFitter::done);
  }

  @Override
  public double error() {
    return call(ValueFitter::error);
  }

  public void readTable(float[] out) {
    runWith((target, memory) -> target.read_table(memory.out(out)));
  }

  public void readThresholds(float[] out) {
    runWith((target, memory) -> target.read_thresholds(memory.out(out)));
  }
}
