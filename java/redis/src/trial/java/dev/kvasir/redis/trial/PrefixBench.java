package dev.kvasir.redis.trial;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.file.ModelFingerprint;
import dev.kvasir.method.Uniform;
import dev.kvasir.prefix.PrefixCache;
import dev.kvasir.prefix.PrefixMatch;
import dev.kvasir.prefix.PrefixRequest;
import dev.kvasir.prefix.Tenant;
import dev.kvasir.prefix.Tier;
import dev.kvasir.redis.RedisBlockStore;
import dev.kvasir.runner.Engine;
import dev.kvasir.runner.Generation;
import dev.kvasir.runner.Model;
import dev.kvasir.runner.Session;
import java.io.IOException;
import java.nio.FloatBuffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;
import redis.clients.jedis.UnifiedJedis;

/**
 * How long a prefix takes from each tier. Arguments: {@code FOLDER BACKEND TOKENS [MODEL]}: tokens of a cache of an 8B model's shape
 * on a backend, and a model file to measure the time to the first token with. Where no redis-server is installed that tier is left out.
 */
public final class PrefixBench {

  private static final int RUNS = 5;
  private static final int SYSTEM_TOKENS = 2048;

  private PrefixBench() {}

  public static void main(String[] arguments) throws Exception {
    Path work = Path.of(arguments[0]);
    String backend = arguments[1];
    int tokens = Integer.parseInt(arguments[2]);
    try (Server server = Server.installed() ? new Server(work, Server.freePort()) : null;
        UnifiedJedis client = server == null ? null : Client.connect(server.port, false)) {
      if (client == null) {
        System.out.println("No redis-server here: the tiers above it are measured.");
      }
      tiers(work.resolve("blocks"), client, backend, tokens);
      tenants();
      if (arguments.length > 3) {
        firstToken(work.resolve("model-blocks"), client, Path.of(arguments[3]));
      }
    }
  }

  private static KvGeometry geometry() {
    return KvGeometry.builder().layers(32).queryHeads(32).kvHeads(8).headDim(128).build();
  }

  private static FloatBuffer noise(int count) {
    FloatBuffer rows =
        ByteBuffer.allocateDirect(count * Float.BYTES).order(ByteOrder.nativeOrder()).asFloatBuffer();
    Random random = new Random(1);
    for (int i = 0; i < count; i++) {
      rows.put(i, (float) random.nextGaussian());
    }
    return rows;
  }

  private static void tiers(Path folder, @Nullable UnifiedJedis client, String backend, int length)
      throws IOException {
    int[] tokens = IntStream.range(0, length + 5).toArray();
    PrefixRequest request = PrefixRequest.of(tokens);
    FloatBuffer rows = noise(128 * 1024);
    try (KvCache cache = KvCache.builder(geometry()).method(Uniform.bits(2)).backend(backend).build()) {
      UnaryOperator<PrefixCache.Builder> none =
          settings -> settings.poolBytes(0).hostBytes(0).deadline(Duration.ofSeconds(60));
      long bytes;
      try (PrefixCache prefixes =
              remote(none.apply(PrefixCache.builder(cache)).folder(folder, 1L << 40), client).build();
          KvSequence sequence = cache.newSequence()) {
        for (int i = 0; i < tokens.length; i += 128) {
          int count = Math.min(128, tokens.length - i);
          for (int layer = 0; layer < 32; layer++) {
            sequence.append(layer, rows, rows, count);
          }
        }
        prefixes.publish(sequence, request).join();
        bytes = prefixes.stats().tiers().get(Tier.FOLDER).bytesWritten();
      }
      System.out.printf(
          Locale.ROOT, "%d tokens of 32 layers, 8 kv heads of 128, at 2 bits, backend %s: %.0f MB%n", length, backend, bytes / 1e6);
      try (PrefixCache prefixes = PrefixCache.builder(cache).hostBytes(1L << 40).folder(folder, 1L << 40).build()) {
        time("pool", prefixes, request, bytes, 0);
      }
      try (PrefixCache prefixes =
          PrefixCache.builder(cache).poolBytes(0).hostBytes(1L << 40).folder(folder, 1L << 40).build()) {
        prefixes.prefetch(request).join();
        time("memory", prefixes, request, bytes, bytes);
      }
      try (PrefixCache prefixes = none.apply(PrefixCache.builder(cache)).folder(folder, 1L << 40).build()) {
        time("folder", prefixes, request, bytes, bytes);
      }
      if (client != null) {
        try (PrefixCache prefixes = remote(none.apply(PrefixCache.builder(cache)), client).build()) {
          time("Redis", prefixes, request, bytes, bytes);
        }
      }
    }
  }

  private static PrefixCache.Builder remote(PrefixCache.Builder settings, @Nullable UnifiedJedis client) {
    return client == null ? settings : settings.remote(new RedisBlockStore(client));
  }

  private static void time(String tier, PrefixCache prefixes, PrefixRequest request, long bytes, long moved) {
    double[] seconds = new double[RUNS];
    Map<Tier, Integer> from = Map.of();
    for (int i = -1; i < RUNS; i++) {
      long begun = System.nanoTime();
      try (PrefixMatch match = prefixes.lookup(request)) {
        double took = (System.nanoTime() - begun) / 1e9;
        from = match.tokensByTier();
        if (i >= 0) {
          seconds[i] = took;
        }
      }
    }
    Arrays.sort(seconds);
    System.out.printf(
        Locale.ROOT, "  %-8s %9.3f ms (best %.3f)  %6.2f GB/s  %s%n", tier, 1e3 * seconds[RUNS / 2], 1e3 * seconds[0], moved / seconds[RUNS / 2] / 1e9, from);
  }

  /** What 256 tenants hold of a prefix that is everybody's. */
  private static void tenants() throws IOException {
    KvGeometry geometry = KvGeometry.builder().layers(4).queryHeads(32).kvHeads(8).headDim(128).build();
    FloatBuffer rows = noise(SYSTEM_TOKENS * 1024);
    int system = 4 + SYSTEM_TOKENS;
    try (KvCache cache = KvCache.builder(geometry).method(Uniform.bits(2)).build();
        PrefixCache prefixes = PrefixCache.builder(cache).hostBytes(0).build()) {
      int[] tokens = IntStream.range(0, system + 1).toArray();
      try (KvSequence sequence = cache.newSequence()) {
        for (int layer = 0; layer < 4; layer++) {
          sequence.append(layer, rows, rows, 4);
          sequence.append(layer, rows, rows, SYSTEM_TOKENS);
        }
        prefixes.publish(sequence, PrefixRequest.of(tokens)).join();
      }
      long once = cache.stats().bytes();
      PrefixMatch[] matches = new PrefixMatch[256];
      for (int i = 0; i < 256; i++) {
        matches[i] = prefixes.lookup(PrefixRequest.of(tokens).tenant(Tenant.of("tenant " + i, new byte[0])).shared(system));
        if (matches[i].reusedTokens() != system) {
          throw new IllegalStateException("reused " + matches[i].reusedTokens());
        }
      }
      System.out.printf(
          Locale.ROOT,
          "a public prefix of %d tokens in 4 layers: %.2f MB; in use by 256 tenants: %.2f MB%n",
          SYSTEM_TOKENS,
          once / 1e6,
          cache.stats().bytes() / 1e6);
      for (PrefixMatch match : matches) {
        match.close();
      }
    }
  }

  private static void firstToken(Path folder, @Nullable UnifiedJedis client, Path file) throws IOException {
    Model model = Model.load(file);
    ModelFingerprint weights = ModelFingerprint.of(file);
    int[] prompt = new Random(3).ints(SYSTEM_TOKENS, 1000, 20000).toArray();
    System.out.printf(Locale.ROOT, "time to the first token after %d, %s%n", prompt.length, model.name());
    UnaryOperator<PrefixCache.Builder> stores =
        settings -> remote(settings.folder(folder, 1L << 40), client);
    UnaryOperator<PrefixCache.Builder> patient = settings -> settings.deadline(Duration.ofSeconds(30));
    try (Engine engine = engine(model, weights, settings -> stores.apply(patient.apply(settings)))) {
      ask("cold", engine, prompt);
      ask("pool", engine, prompt);
    }
    try (Engine engine = engine(model, weights, settings -> patient.apply(settings).poolBytes(0).folder(folder, 1L << 40))) {
      ask("folder, the first time", engine, prompt);
      ask("memory", engine, prompt);
    }
    try (Engine engine =
        engine(model, weights, settings -> patient.apply(settings).poolBytes(0).hostBytes(0).folder(folder, 1L << 40))) {
      ask("folder", engine, prompt);
      ask("folder", engine, prompt);
    }
    if (client != null) {
      try (Engine engine =
          engine(model, weights, settings -> remote(patient.apply(settings).poolBytes(0).hostBytes(0), client))) {
        ask("Redis", engine, prompt);
        ask("Redis", engine, prompt);
      }
    }
  }

  private static Engine engine(Model model, ModelFingerprint weights, UnaryOperator<PrefixCache.Builder> settings) {
    return Engine.builder(model).method(Uniform.bits(2)).prefixes(weights, settings).build();
  }

  private static void ask(String tier, Engine engine, int[] prompt) {
    try (Session session = engine.newSession()) {
      session.append(prompt);
      AtomicLong first = new AtomicLong();
      long begun = System.nanoTime();
      Generation wanted =
          Generation.greedy(engine.model(), 1).listener((token, text) -> first.set(System.nanoTime() - begun));
      int reused = session.generate(wanted).join().reusedTokens();
      System.out.printf(Locale.ROOT, "  %-24s %8.3f s  %d tokens reused%n", tier, first.get() / 1e9, reused);
    }
    try {
      Thread.sleep(1500); // what is written in the background is there then
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }
}
