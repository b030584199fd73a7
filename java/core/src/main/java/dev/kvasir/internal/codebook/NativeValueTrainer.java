package dev.kvasir.internal.codebook;

import dev.kvasir.internal.jni.ValueTrainer;

/** See ValueTrainer in commvq_training.h. Sizes of arrays have been checked by callers. */
public final class NativeValueTrainer extends NativeObject<ValueTrainer> implements NativeTrainer {

  public NativeValueTrainer(int width, int hidden, int codes, long seed) {
    super("the value trainer", memory -> ValueTrainer.create(width, hidden, codes, seed), ValueTrainer::destroy);
  }

  public void setSteps(int steps) {
    run(target -> target.set_steps(steps));
  }

  public void setBatch(int tokens) {
    run(target -> target.set_batch(tokens));
  }

  public void setLearningRate(double rate) {
    run(target -> target.set_learning_rate(rate));
  }

  public void setWeightDecay(double decay) {
    run(target -> target.set_weight_decay(decay));
  }

  public void setTemperature(double temperature) {
    run(target -> target.set_temperature(temperature));
  }

  public void setTable(float[] table) {
    runWith((target, memory) -> target.set_table(memory.in(table)));
  }

  @Override
  public void add(float[] rows, int tokens, int elements) {
    runWith((target, memory) -> target.add(memory.in(rows, elements), tokens));
  }

  @Override
  public boolean step() {
    return call(ValueTrainer::step);
  }

  @Override
  public double done() {
    return call(ValueTrainer::done);
  }

  @Override
  public double error() {
    return call(ValueTrainer::batch_error);
  }

  public void read(
      float[] scale,
      float[] normWeight,
      float[] normBias,
      float[] firstWeight,
      float[] firstBias,
      float[] secondWeight,
      float[] secondBias,
      float[] table) {
    runWith(
        (target, memory) ->
            target.read(
                memory.out(scale),
                memory.out(normWeight),
                memory.out(normBias),
                memory.out(firstWeight),
                memory.out(firstBias),
                memory.out(secondWeight),
                memory.out(secondBias),
                memory.out(table)));
  }
}
