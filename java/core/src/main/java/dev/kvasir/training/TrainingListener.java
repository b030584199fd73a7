package dev.kvasir.training;

/** Told of a training's progress after every step, on the thread that trains. */
@FunctionalInterface
public interface TrainingListener {

  /**
   * A step is done. What this throws ends the training; {@link CodebookTrainer#cancel} does so, too.
   *
   * @param progress where the training stands
   */
  void onProgress(TrainingProgress progress);
}
