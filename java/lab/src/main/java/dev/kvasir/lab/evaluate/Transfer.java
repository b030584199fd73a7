package dev.kvasir.lab.evaluate;

import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.Side;
import dev.kvasir.runner.Model;

/**
 * Gives a sequence what a 16-bit one holds, in one piece, as engines do that compress after the prompt was read. Methods
 * that go by queries see some first, as they would have when the prompt attended.
 *
 * @param model whose keys they are
 * @param from a sequence with a 16-bit cache
 * @param queries what its newest tokens asked
 */
record Transfer(Model model, KvSequence from, NewestQueries queries) {

  /** Makes a sequence as long as {@code end} says, in all layers. */
  void to(KvSequence sequence, int end) {
    for (int layer = 0; layer < model.geometry().layers(); layer++) {
      to(sequence, layer, end);
    }
  }

  /** The same in one layer. */
  void to(KvSequence sequence, int layer, int end) {
    int first = (int) sequence.length(layer);
    int count = end - first;
    if (count <= 0) {
      return;
    }
    KvGeometry geometry = model.geometry();
    float[] keys = from.read(layer, Side.KEYS, first, count);
    if (sequence.cache().method().keysBeforeRope()) {
      model.config().rope().rotateBack(keys, count, geometry.kvHeads(layer), first);
    }
    queries.showTo(sequence, layer);
    sequence.append(layer, keys, from.read(layer, Side.VALUES, first, count), count);
  }
}
