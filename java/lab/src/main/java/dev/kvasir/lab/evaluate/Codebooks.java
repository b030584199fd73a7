package dev.kvasir.lab.evaluate;

import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.Side;
import dev.kvasir.commvq.CommVq;
import dev.kvasir.commvq.CommVqCodebooks;
import dev.kvasir.commvq.KeyTrainer;
import dev.kvasir.commvq.ValueFitter;
import dev.kvasir.lab.inspect.Recording;
import java.util.List;

/** CommVQ's codebooks, trained on the texts for tuning. */
final class Codebooks {

  private static final int TOKENS = 3072;
  private static final int KEY_STEPS = 20;
  private static final int VALUE_STEPS = 8;
  private static final double INDEX_BITS = 12; // of a code (a, b) with 64 entries

  private Codebooks() {}

  /** The method with codebooks of so many bits per element. */
  static KvMethod method(Calibrations calibrations, int bits) {
    return calibrations.onceBeforeRope("commvq-" + bits, TOKENS, windows -> train(windows, bits));
  }

  private static KvMethod train(List<Recording> windows, int bits) {
    KvGeometry geometry = windows.get(0).model().geometry();
    CommVqCodebooks.Builder codebooks = CommVqCodebooks.builder(geometry);
    for (int layer = 0; layer < geometry.layers(); layer++) {
      int headDim = geometry.headDim(layer);
      int width = geometry.kvHeads(layer) * headDim;
      int stages = (int) Math.max(1, Math.round(bits * headDim / INDEX_BITS));
      try (KeyTrainer keys =
              KeyTrainer.builder(geometry.kvHeads(layer), headDim).stages(stages).steps(KEY_STEPS).build();
          ValueFitter values = ValueFitter.of(width, bits * width, VALUE_STEPS)) {
        for (Recording window : windows) {
          keys.add(window.rows(layer, Side.KEYS), window.tokens());
          values.add(window.rows(layer, Side.VALUES), window.tokens());
        }
        codebooks.keys(layer, keys.train(progress -> {})).values(layer, values.train(progress -> {}));
      }
    }
    return CommVq.of(codebooks.build(), windows.get(0).model().config().rope().forCache());
  }
}
