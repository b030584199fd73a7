package dev.kvasir.redis.trial;

import dev.kvasir.redis.trial.FaultyProxy.Fault;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.Jedis;

/**
 * Real servers, real processes, and everything that happens to them: killed, restarted, filled, slowed, cut off, lied about. No
 * answer may ever be wrong, and no request may wait much longer than its deadline. Argument: a folder to work in.
 */
public final class StoreTrial {

  /** What a lookup may take, with a deadline of 500 ms, on a machine that is busy. */
  private static final long PATIENCE = 2500;

  private final Path work;
  private int passed;
  private int failed;

  private StoreTrial(Path work) {
    this.work = work;
  }

  public static void main(String[] arguments) throws Exception {
    StoreTrial trial = new StoreTrial(Path.of(arguments[0]));
    trial.sharing();
    trial.deaths();
    trial.fullServers();
    trial.faultyNetworks();
    trial.lies();
    trial.killedClients();
    trial.cluster();
    System.out.println(trial.passed + " passed, " + trial.failed + " failed");
    System.exit(trial.failed == 0 ? 0 : 1);
  }

  /** A client under way. */
  private record Run(Process process, Path log) {
    void awaitReady() throws IOException, InterruptedException {
      while (process.isAlive() && !Files.readString(log).contains("ready")) {
        Thread.sleep(20);
      }
    }

    Map<String, Long> result() throws IOException, InterruptedException {
      if (!process.waitFor(3, TimeUnit.MINUTES)) {
        process.destroyForcibly();
        throw new IOException("a client hangs: " + Files.readString(log));
      }
      Map<String, Long> numbers = new HashMap<>();
      for (String line : Files.readAllLines(log)) {
        if (line.startsWith("lookups=")) {
          for (String part : line.split(" ")) {
            numbers.put(part.replaceAll("=.*", ""), Long.parseLong(part.replaceAll(".*=", "")));
          }
        }
      }
      if (process.exitValue() != 0 || numbers.isEmpty()) {
        throw new IOException("a client failed: " + Files.readString(log));
      }
      return numbers;
    }
  }

  private Run client(Object... arguments) throws IOException {
    List<String> command = new ArrayList<>();
    command.add(System.getProperty("java.home") + "/bin/java");
    command.addAll(List.of("-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", System.getProperty("java.class.path")));
    command.add(Client.class.getName());
    for (Object argument : arguments) {
      command.add(argument.toString());
    }
    Path log = Files.createTempFile(work, "client", ".log");
    return new Run(new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(log.toFile()).start(), log);
  }

  private void check(String what, boolean good, Object seen) {
    System.out.println((good ? "ok      " : "FAILED  ") + what + ": " + seen);
    passed += good ? 1 : 0;
    failed += good ? 0 : 1;
  }

  /** No wrong answers, none that took too long. */
  private void checkRight(String what, Map<String, Long> seen) {
    check(what, seen.get("wrong") == 0 && seen.get("worstMillis") < PATIENCE && seen.get("lookups") > 0, seen);
  }

  private void sharing() throws Exception {
    try (Server server = new Server(work, Server.freePort())) {
      checkRight("one publishes", client(server.port, "pooled", 0, 1, 20, "publish").result());
      Map<String, Long> seen = client(server.port, "pooled", 0, 2, 20, "read").result();
      checkRight("another reads", seen);
      check("all of it", seen.get("whole") == 20 && seen.get("remoteHits") > 60 && seen.get("failures") == 0, seen);
      Run one = client(server.port, "pooled", 4, 3, 40, "publish");
      Run two = client(server.port, "pooled", 4, 4, 40, "publish");
      checkRight("two at once", one.result());
      checkRight("two at once", two.result());
    }
  }

  private void deaths() throws Exception {
    try (Server server = new Server(work, Server.freePort())) {
      client(server.port, "pooled", 0, 1, 20, "publish").result();
      Run run = client(server.port, "pooled", 8, 2, 20, "publish");
      run.awaitReady();
      Thread.sleep(1500);
      server.kill();
      Thread.sleep(1500);
      server.start();
      Map<String, Long> seen = run.result();
      checkRight("a server dies and comes back empty", seen);
      check("its absence is noticed, and its return", seen.get("failures") > 0 && seen.get("hits") > 20, seen);
      server.kill();
      seen = client(server.port, "pooled", 0, 3, 20, "publish").result();
      checkRight("a server is not there", seen);
      check("and is soon left alone", seen.get("hits") == 0 && seen.get("skipped") > 5, seen);
    }
  }

  private void fullServers() throws Exception {
    for (String policy : List.of("noeviction", "allkeys-lru")) {
      try (Server server = new Server(work, Server.freePort(), "--maxmemory", "3mb", "--maxmemory-policy", policy)) {
        checkRight("full, " + policy, client(server.port, "pooled", 2, 1, 40, "publish").result());
        Map<String, Long> seen = client(server.port, "pooled", 0, 2, 40, "read").result();
        checkRight("full, " + policy + ", read", seen);
        // Among blocks that were used in the same second chance decides which one an LRU drops. Without the first, which all
        // texts share, none is found, until somebody publishes it again.
        for (int turn = 0; turn < 10 && seen.get("remoteHits") == 0; turn++) {
          client(server.port, "pooled", 0, 3, 1, "publish").result();
          seen = client(server.port, "pooled", 0, 2, 40, "read").result();
        }
        check("what fits is there", seen.get("remoteHits") > 0 && seen.get("whole") < 40, seen);
      }
    }
  }

  private void faultyNetworks() throws Exception {
    try (Server server = new Server(work, Server.freePort());
        FaultyProxy proxy = new FaultyProxy(server.port)) {
      client(server.port, "pooled", 0, 1, 20, "publish").result();
      for (Fault fault : Fault.values()) {
        proxy.fault = fault;
        checkRight("network: " + fault, client(proxy.port(), "pooled", 3, 2, 20, "publish").result());
      }
      proxy.fault = Fault.NONE;
      Run run = client(proxy.port(), "pooled", 10, 3, 20, "publish");
      run.awaitReady();
      for (Fault fault : List.of(Fault.CORRUPT, Fault.SILENCE, Fault.CUT, Fault.DELAY, Fault.NONE)) {
        proxy.fault = fault;
        Thread.sleep(1800);
      }
      checkRight("network: one after the other", run.result());
      Map<String, Long> seen = client(server.port, "pooled", 0, 4, 20, "read").result();
      checkRight("network: afterwards", seen);
      check("what was stored is whole", seen.get("rejected") == 0, seen);
    }
  }

  private void lies() throws Exception {
    try (Server server = new Server(work, Server.freePort())) {
      client(server.port, "pooled", 0, 1, 20, "publish").result();
      try (Jedis direct = new Jedis("127.0.0.1", server.port)) {
        List<byte[]> keys = new ArrayList<>(direct.keys("kvasir:*".getBytes(StandardCharsets.US_ASCII)));
        for (int i = 0; i < keys.size(); i += 3) {
          byte[] value = direct.get(keys.get((i + 1) % keys.size())); // another block under this name
          if (i % 2 == 0) {
            value = direct.get(keys.get(i)); // or this one with a bit that is not its own
            value[i * 7919 % value.length] ^= 4;
          }
          direct.set(keys.get(i), value);
        }
      }
      Map<String, Long> seen = client(server.port, "pooled", 0, 2, 20, "read").result();
      checkRight("a server lies", seen);
      check("and is not believed", seen.get("rejected") > 0 && seen.get("whole") < 20, seen);
      // A lookup ends at the first lie of a text, which the publication that follows replaces: one a text and turn.
      for (int turn = 0; turn <= Client.MOST_BLOCKS && seen.get("whole") < 20; turn++) {
        seen = client(server.port, "pooled", 0, 3, 20, "publish").result();
      }
      seen = client(server.port, "pooled", 0, 4, 20, "read").result();
      check("lies are replaced", seen.get("wrong") == 0 && seen.get("whole") == 20, seen);
    }
  }

  private void killedClients() throws Exception {
    try (Server server = new Server(work, Server.freePort())) {
      Path folder = work.resolve("blocks");
      for (int i = 0; i < 4; i++) {
        Run run = client(server.port, "pooled", 60, i, 40, "publish", folder);
        run.awaitReady();
        Thread.sleep(300 + 200 * i);
        run.process.destroyForcibly().waitFor();
      }
      checkRight("clients die", client(server.port, "pooled", 0, 9, 40, "publish", folder).result());
      Map<String, Long> seen = client(server.port, "pooled", 0, 10, 40, "read", folder).result();
      check("what they left is whole", seen.get("wrong") == 0 && seen.get("whole") == 40 && seen.get("rejected") == 0, seen);
      try (var files = Files.list(folder)) {
        long left = files.filter(file -> file.getFileName().toString().startsWith("unfinished")).count();
        check("and nothing half", left == 0, left + " folders");
      }
    }
  }

  private void cluster() throws Exception {
    List<Server> nodes = new ArrayList<>();
    try {
      List<String> command = new ArrayList<>(List.of("redis-cli", "--cluster", "create"));
      for (int i = 0; i < 3; i++) {
        int port = Server.freePort();
        nodes.add(new Server(work, port, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000",
            "--cluster-require-full-coverage", "no"));
        command.add("127.0.0.1:" + port);
      }
      command.addAll(List.of("--cluster-yes"));
      Path log = work.resolve("cluster.log");
      Process creation = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(log.toFile()).start();
      if (creation.waitFor() != 0) {
        throw new IOException(Files.readString(log));
      }
      Thread.sleep(2000);
      int port = nodes.get(0).port;
      checkRight("cluster: one publishes", client(port, "cluster", 0, 1, 20, "publish").result());
      Map<String, Long> seen = client(port, "cluster", 0, 2, 20, "read").result();
      checkRight("cluster: another reads", seen);
      check("cluster: all of it", seen.get("whole") == 20 && seen.get("failures") == 0, seen);
      Run run = client(port, "cluster", 6, 3, 20, "publish");
      run.awaitReady();
      Thread.sleep(1500);
      nodes.get(2).kill();
      checkRight("cluster: a node dies", run.result());
      checkRight("cluster: without a node", client(port, "cluster", 2, 4, 20, "publish").result());
    } finally {
      for (Server node : nodes) {
        node.close();
      }
    }
  }
}
