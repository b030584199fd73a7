package dev.kvasir.lab.evaluate;

import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.lab.sample.Sample;
import dev.kvasir.runner.Decoder;
import java.nio.FloatBuffer;
import java.util.List;

/**
 * What the newest tokens of a 16-bit sequence ask, layer by layer, and what attention answers.
 *
 * @param tokens how many of them
 * @param queries {@code [layer][tokens * queryHeads * headDim]}
 * @param outputs the same
 */
record NewestQueries(int tokens, float[][] queries, float[][] outputs) {

  /** Most tokens that ask. */
  private static final int MOST = 32;

  /** Lets the last tokens before {@code end} be read once more, on a fork. */
  static NewestQueries of(Decoder decoder, KvSequence reference, Sample sample, int end) {
    KvGeometry geometry = reference.cache().geometry();
    int asked = Math.min(MOST, end - 1);
    float[][] queries = new float[geometry.layers()][];
    float[][] outputs = new float[geometry.layers()][];
    try (KvSequence again = reference.fork()) {
      again.truncate(end - asked);
      decoder.probe(
          (layer, asking, found, rows) -> {
            queries[layer] = copy(asking, rows * geometry.querySize(layer));
            outputs[layer] = copy(found, rows * geometry.querySize(layer));
          });
      decoder.decode(
          List.of(new Decoder.Feed(again, sample.tokens(), end - asked, asked, 0)), (feed, token, logits) -> {});
    } finally {
      decoder.probe(null);
    }
    return new NewestQueries(asked, queries, outputs);
  }

  /** Shows a layer's queries to a sequence whose method may go by them when it seals pages. */
  void showTo(KvSequence sequence, int layer) {
    sequence.observe(layer, queries[layer], tokens);
  }

  private static float[] copy(FloatBuffer from, int size) {
    float[] to = new float[size];
    from.get(0, to);
    return to;
  }
}
