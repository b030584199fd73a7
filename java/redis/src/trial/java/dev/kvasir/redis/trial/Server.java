package dev.kvasir.redis.trial;

import java.io.File;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.exceptions.JedisException;

/** A redis-server of our own, on a port of its own, with a folder of its own. */
final class Server implements AutoCloseable {

  final int port;
  private final Path folder;
  private final List<String> settings;
  private Process process;

  Server(Path work, int port, String... settings) throws IOException, InterruptedException {
    this.port = port;
    this.folder = Files.createDirectories(work.resolve("redis-" + port));
    this.settings = List.of(settings);
    start();
  }

  /** Whether there is a redis-server among the machine's commands. */
  static boolean installed() {
    return Stream.of(System.getenv("PATH").split(File.pathSeparator)).anyMatch(path -> Files.isExecutable(Path.of(path, "redis-server")));
  }

  void start() throws IOException, InterruptedException {
    List<String> command = new ArrayList<>(List.of("redis-server", "--port", "" + port, "--bind", "127.0.0.1"));
    command.addAll(List.of("--save", "", "--appendonly", "no", "--dir", folder.toString()));
    command.addAll(settings);
    process =
        new ProcessBuilder(command)
            .redirectErrorStream(true)
            .redirectOutput(ProcessBuilder.Redirect.appendTo(folder.resolve("log").toFile()))
            .start();
    for (int i = 0; i < 200; i++) {
      try (Jedis client = new Jedis("127.0.0.1", port)) {
        client.ping();
        return;
      } catch (JedisException e) {
        Thread.sleep(50);
      }
    }
    throw new IOException("no server on port " + port + ": " + Files.readString(folder.resolve("log")));
  }

  /** As by kill -9. */
  void kill() throws InterruptedException {
    process.destroyForcibly();
    process.waitFor(10, TimeUnit.SECONDS);
  }

  @Override
  public void close() throws InterruptedException {
    kill();
  }

  /** A port that is free, with the one that a cluster's nodes talk on. */
  static int freePort() throws IOException {
    for (int port = 20000 + (int) (System.nanoTime() % 5000); ; port++) {
      try (ServerSocket one = new ServerSocket(port, 1, InetAddress.getLoopbackAddress());
          ServerSocket two = new ServerSocket(port + 10000, 1, InetAddress.getLoopbackAddress())) {
        return port;
      } catch (IOException e) {
        if (port > 30000) {
          throw e;
        }
      }
    }
  }
}
