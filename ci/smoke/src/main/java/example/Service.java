package example;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.file.ModelFingerprint;
import dev.kvasir.method.Uniform;
import dev.kvasir.micrometer.CacheMetrics;
import dev.kvasir.prefix.Tier;
import dev.kvasir.redis.RedisBlockStore;
import dev.kvasir.runner.Engine;
import dev.kvasir.runner.Generation;
import dev.kvasir.runner.Model;
import dev.kvasir.runner.Session;
import io.micrometer.core.instrument.simple.SimpleMeterRegistry;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Path;
import redis.clients.jedis.RedisClient;

/**
 * A service of a user: a model whose sessions share what they read, with a server for blocks that is away today, and meters. The
 * argument is the model's folder.
 */
public final class Service {

  private static final String PROMPT = "set ka=57 mo=08 te=91\n".repeat(12) + "run su:ka+mo;ri:su-te;\n";

  public static void main(String[] args) throws IOException {
    Path folder = Path.of(args[0]);
    Model model = Model.load(folder);
    ModelFingerprint weights = ModelFingerprint.of(folder.resolve("model.safetensors"));
    try (RedisClient nobody = RedisClient.create("127.0.0.1", closedPort());
        Engine engine =
            Engine.builder(model)
                .method(Uniform.bits(8))
                .prefixes(weights, settings -> settings.remote(new RedisBlockStore(nobody)))
                .build()) {
      Generation.Result first = answer(engine, model);
      Generation.Result second = answer(engine, model);
      for (int i = 0; i < 100 && second.reusedTokens() == 0; i++) { // what was read is made known aside
        second = answer(engine, model);
      }
      System.out.printf(
          "Service: \"%s\", and of its %d tokens the second session found %d; the server failed %d times%n",
          first.text().strip(),
          PROMPT.length(),
          second.reusedTokens(),
          engine.prefixStats().orElseThrow().tiers().get(Tier.REMOTE).failures());
      if (second.reusedTokens() < 128 || !second.tokens().equals(first.tokens())) {
        throw new AssertionError("the second session did not go on where the first had been");
      }
    }
    meters(model);
  }

  private static Generation.Result answer(Engine engine, Model model) {
    try (Session session = engine.newSession()) {
      session.append(PROMPT);
      return session.generate(Generation.greedy(model, 12)).join();
    }
  }

  private static void meters(Model model) {
    SimpleMeterRegistry registry = new SimpleMeterRegistry();
    CacheMetrics metrics = new CacheMetrics("service");
    try (KvCache cache = metrics.watch(KvCache.builder(model.geometry()).listener(metrics).build());
        KvSequence sequence = cache.newSequence()) {
      metrics.bindTo(registry);
      float[] row = new float[model.geometry().rowSize(0)];
      sequence.append(0, row, row, 1);
      double tokens = registry.get("kvasir.tokens").counter().count();
      if (!(tokens > 0)) {
        throw new AssertionError("the meter has not seen the token");
      }
    }
  }

  /** One that was free a moment ago. */
  private static int closedPort() throws IOException {
    try (ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
      return socket.getLocalPort();
    }
  }
}
