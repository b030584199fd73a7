import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.method.Uniform;
import dev.kvasir.micrometer.CacheMetrics;
import dev.kvasir.micrometer.QualityProbe;
import io.micrometer.core.instrument.simple.SimpleMeterRegistry;
import java.util.Random;
import java.util.concurrent.TimeUnit;

/** Meters of a cache that serves, with a probe of what compression costs it right now. */
public final class Metrics {

  private static final KvGeometry GEOMETRY =
      KvGeometry.builder().layers(4).queryHeads(8).kvHeads(2).headDim(64).build();
  private static final int STEPS = 400;

  public static void main(String[] args) {
    SimpleMeterRegistry registry = new SimpleMeterRegistry(); // or that of your framework
    CacheMetrics metrics = new CacheMetrics("chat");
    Random random = new Random(6);
    try (KvCache cache = metrics.watch(KvCache.builder(GEOMETRY).method(Uniform.bits(2)).listener(metrics).build());
        QualityProbe probe = QualityProbe.on(cache).every(16).name("chat").build();
        KvSequence sequence = cache.newSequence()) {
      metrics.bindTo(registry);
      probe.bindTo(registry);
      float[] output = new float[GEOMETRY.querySize(0)];
      for (int step = 0; step < STEPS; step++) {
        for (int layer = 0; layer < GEOMETRY.layers(); layer++) {
          float[] row = numbers(random, GEOMETRY.rowSize(layer));
          probe.append(sequence, layer, row, row, 1);
          probe.attend(sequence, layer, numbers(random, output.length), output, 1);
        }
      }
      double bits = registry.get("kvasir.bits").tag("cache", "chat").gauge().value();
      double error = registry.get("kvasir.quality.error").tag("cache", "chat").gauge().value();
      double attend = registry.get("kvasir.attend").timer().mean(TimeUnit.MICROSECONDS);
      System.out.printf(
          "Metrics: %.0f tokens, %.2f bits an element, %.0f us an attend, attention off by %.3f of its size%n",
          registry.get("kvasir.tokens").counter().count(), bits, attend, error);
      if (!(error > 0 && error < 1) || !(bits > 2 && bits < 16)) {
        throw new AssertionError("meters say something else than the cache does");
      }
    }
  }

  private static float[] numbers(Random random, int count) {
    float[] numbers = new float[count];
    for (int i = 0; i < count; i++) {
      numbers[i] = (float) random.nextGaussian();
    }
    return numbers;
  }
}
