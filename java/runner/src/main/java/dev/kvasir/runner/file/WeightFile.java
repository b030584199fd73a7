package dev.kvasir.runner.file;

import java.io.IOException;
import java.util.Set;

/** Where a model's weights come from. What was read stays valid after a close. */
public interface WeightFile extends AutoCloseable {

  /** The names of all tensors. */
  Set<String> names();

  /** Whether there is a tensor of this name. */
  boolean has(String name);

  /**
   * A tensor of one or two dimensions.
   *
   * @throws ModelException if there is none of this name, or it cannot be used
   */
  Weights read(String name) throws IOException;

  @Override
  void close() throws IOException;
}
