import dev.kvasir.engine.KvEngineAdapter;
import java.util.Arrays;
import java.util.Random;

/**
 * An engine of plain arrays, in the manner of those that are one file: it reads a prompt and writes tokens, greedily. Its keys and
 * values are behind two calls, so it runs with arrays of its own or with a compressed cache, and the two must say the same.
 * Weights are random.
 */
public final class PluggedEngine {

  /** All that the engine wants of a cache: take the newest token's rows, and attend with its query. */
  interface Cache {
    void append(int layer, int position, float[] key, float[] value);

    void attend(int layer, int position, float[] query, float[] output);
  }

  /** What such engines have: an array a layer for the whole context, in 32 bits, and loops. */
  static final class Arrays32 implements Cache {
    final float[][] keys = new float[LAYERS][CONTEXT * KV_WIDTH];
    final float[][] values = new float[LAYERS][CONTEXT * KV_WIDTH];

    @Override
    public void append(int layer, int position, float[] key, float[] value) {
      System.arraycopy(key, 0, keys[layer], position * KV_WIDTH, KV_WIDTH);
      System.arraycopy(value, 0, values[layer], position * KV_WIDTH, KV_WIDTH);
    }

    @Override
    public void attend(int layer, int position, float[] query, float[] output) {
      Arrays.fill(output, 0);
      for (int head = 0; head < HEADS; head++) {
        int kv = head / (HEADS / KV_HEADS) * HEAD_DIM;
        float[] weights = new float[position + 1];
        for (int t = 0; t <= position; t++) {
          for (int c = 0; c < HEAD_DIM; c++) {
            weights[t] += query[head * HEAD_DIM + c] * keys[layer][t * KV_WIDTH + kv + c];
          }
          weights[t] /= (float) Math.sqrt(HEAD_DIM);
        }
        softmax(weights);
        for (int t = 0; t <= position; t++) {
          for (int c = 0; c < HEAD_DIM; c++) {
            output[head * HEAD_DIM + c] += weights[t] * values[layer][t * KV_WIDTH + kv + c];
          }
        }
      }
    }
  }

  /** The same two calls on a lease. */
  record Compressed(KvEngineAdapter adapter, int lease) implements Cache {
    @Override
    public void append(int layer, int position, float[] key, float[] value) {
      adapter.append(lease, layer, key, 0, value, 0, 1);
    }

    @Override
    public void attend(int layer, int position, float[] query, float[] output) {
      adapter.attend(lease, layer, query, 0, output, 0, 1);
    }
  }

  private static final int LAYERS = 3;
  private static final int WIDTH = 128;
  private static final int HEADS = 4;
  private static final int KV_HEADS = 2;
  private static final int HEAD_DIM = 32;
  private static final int KV_WIDTH = KV_HEADS * HEAD_DIM;
  private static final int HIDDEN = 256;
  private static final int VOCABULARY = 500;
  private static final int CONTEXT = 512;
  private static final int PROMPT = 300;
  private static final int ANSWER = 60;

  private final Random random = new Random(9);
  private final float[] embedding = weights(VOCABULARY, WIDTH, 1);
  private final float[][] wq = layers(HEADS * HEAD_DIM, WIDTH);
  private final float[][] wk = layers(KV_WIDTH, WIDTH);
  private final float[][] wv = layers(KV_WIDTH, WIDTH);
  private final float[][] wo = layers(WIDTH, HEADS * HEAD_DIM);
  private final float[][] up = layers(HIDDEN, WIDTH);
  private final float[][] down = layers(WIDTH, HIDDEN);

  public static void main(String[] args) {
    PluggedEngine engine = new PluggedEngine();
    int[] expected = engine.answer(new Arrays32());
    long own = 2L * Float.BYTES * LAYERS * CONTEXT * KV_WIDTH;
    try (KvEngineAdapter adapter = KvEngineAdapter.open(LAYERS, HEADS, KV_HEADS, HEAD_DIM, 8)) {
      int lease = adapter.lease();
      int[] got = engine.answer(new Compressed(adapter, lease));
      int branch = adapter.fork(lease); // another way on from the prompt
      adapter.truncate(branch, PROMPT);
      System.out.printf(
          "PluggedEngine: %d tokens, the same with arrays of %d bytes and with a cache of %d%n",
          got.length, own, adapter.cache().stats().bytes());
      if (!Arrays.equals(expected, got) || adapter.length(branch) != PROMPT) {
        throw new AssertionError(Arrays.toString(expected) + " and " + Arrays.toString(got));
      }
    }
  }

  /** Reads a prompt, then writes what is likeliest. */
  private int[] answer(Cache cache) {
    int[] answer = new int[ANSWER];
    int token = 0;
    for (int position = 0; position < PROMPT + ANSWER; position++) {
      int next = step(cache, position, position < PROMPT ? position * 7 % VOCABULARY : token);
      token = next;
      if (position >= PROMPT) {
        answer[position - PROMPT] = next;
      }
    }
    return answer;
  }

  /** One token through all layers; returns the likeliest next one. */
  private int step(Cache cache, int position, int token) {
    float[] x = Arrays.copyOfRange(embedding, token * WIDTH, (token + 1) * WIDTH);
    float[] attended = new float[HEADS * HEAD_DIM];
    for (int layer = 0; layer < LAYERS; layer++) {
      float[] input = normed(x);
      float[] query = product(wq[layer], input);
      float[] key = product(wk[layer], input);
      rotate(query, position);
      rotate(key, position);
      cache.append(layer, position, key, product(wv[layer], input));
      cache.attend(layer, position, query, attended);
      add(x, product(wo[layer], attended));
      float[] hidden = product(up[layer], normed(x));
      for (int i = 0; i < HIDDEN; i++) {
        hidden[i] = Math.max(0, hidden[i]);
      }
      add(x, product(down[layer], hidden));
    }
    float[] logits = product(embedding, normed(x));
    int best = 0;
    for (int i = 1; i < VOCABULARY; i++) {
      best = logits[i] > logits[best] ? i : best;
    }
    return best;
  }

  /** RoPE: turns the halves of each head against each other. */
  private static void rotate(float[] row, int position) {
    for (int first = 0; first < row.length; first += HEAD_DIM) {
      for (int i = 0; i < HEAD_DIM / 2; i++) {
        double angle = position * Math.pow(10000, -2.0 * i / HEAD_DIM);
        float cos = (float) Math.cos(angle);
        float sin = (float) Math.sin(angle);
        float a = row[first + i];
        float b = row[first + HEAD_DIM / 2 + i];
        row[first + i] = a * cos - b * sin;
        row[first + HEAD_DIM / 2 + i] = a * sin + b * cos;
      }
    }
  }

  private static float[] product(float[] matrix, float[] vector) {
    float[] result = new float[matrix.length / vector.length];
    for (int i = 0; i < result.length; i++) {
      float sum = 0;
      for (int j = 0; j < vector.length; j++) {
        sum += matrix[i * vector.length + j] * vector[j];
      }
      result[i] = sum;
    }
    return result;
  }

  private static float[] normed(float[] x) {
    float squares = 1e-6f;
    for (float each : x) {
      squares += each * each / x.length;
    }
    float[] result = x.clone();
    for (int i = 0; i < x.length; i++) {
      result[i] /= (float) Math.sqrt(squares);
    }
    return result;
  }

  private static void softmax(float[] logits) {
    float most = Float.NEGATIVE_INFINITY;
    for (float each : logits) {
      most = Math.max(most, each);
    }
    float sum = 0;
    for (int i = 0; i < logits.length; i++) {
      logits[i] = (float) Math.exp(logits[i] - most);
      sum += logits[i];
    }
    for (int i = 0; i < logits.length; i++) {
      logits[i] /= sum;
    }
  }

  private static void add(float[] x, float[] y) {
    for (int i = 0; i < x.length; i++) {
      x[i] += y[i];
    }
  }

  private float[][] layers(int rows, int columns) {
    float[][] all = new float[LAYERS][];
    for (int layer = 0; layer < LAYERS; layer++) {
      all[layer] = weights(rows, columns, 1 / Math.sqrt(columns));
    }
    return all;
  }

  private float[] weights(int rows, int columns, double scale) {
    float[] numbers = new float[rows * columns];
    for (int i = 0; i < numbers.length; i++) {
      numbers[i] = (float) (scale * random.nextGaussian());
    }
    return numbers;
  }
}
