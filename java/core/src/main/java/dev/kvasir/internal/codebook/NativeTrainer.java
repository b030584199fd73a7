package dev.kvasir.internal.codebook;

/** What all native trainers have in common. */
public interface NativeTrainer extends AutoCloseable {

  void add(float[] rows, int tokens, int elements);

  boolean step();

  double done();

  double error();

  @Override
  void close();
}
