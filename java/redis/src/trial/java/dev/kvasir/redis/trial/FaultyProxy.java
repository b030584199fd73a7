package dev.kvasir.redis.trial;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.concurrent.ThreadLocalRandom;

/** Stands before a server and passes bytes on: late, up to some point, or changed. */
final class FaultyProxy implements AutoCloseable {

  /** What is wrong with it. */
  enum Fault {
    NONE,
    /** Answers come after a second. */
    DELAY,
    /** Connections end in the middle of answers. */
    CUT,
    /** Bytes of answers are others. */
    CORRUPT,
    /** Connections are taken, and nothing comes. */
    SILENCE
  }

  volatile Fault fault = Fault.NONE;
  private final ServerSocket listener;
  private final int target;

  FaultyProxy(int target) throws IOException {
    this.target = target;
    this.listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
    start(this::accept);
  }

  int port() {
    return listener.getLocalPort();
  }

  private static void start(Runnable work) {
    Thread thread = new Thread(work, "proxy");
    thread.setDaemon(true);
    thread.start();
  }

  private void accept() {
    while (!listener.isClosed()) {
      try {
        Socket client = listener.accept();
        Socket server = new Socket(InetAddress.getLoopbackAddress(), target);
        start(() -> pass(client, server, false));
        start(() -> pass(server, client, true));
      } catch (IOException e) {
        continue; // the server is down: who connects next sees it
      }
    }
  }

  private void pass(Socket from, Socket to, boolean answers) {
    byte[] buffer = new byte[16384];
    try (from;
        to;
        InputStream in = from.getInputStream();
        OutputStream out = to.getOutputStream()) {
      for (int count = in.read(buffer); count >= 0; count = in.read(buffer)) {
        ThreadLocalRandom random = ThreadLocalRandom.current();
        Fault now = answers ? fault : Fault.NONE;
        if (now == Fault.DELAY) {
          Thread.sleep(1000);
        } else if (now == Fault.SILENCE) {
          continue;
        } else if (now == Fault.CUT && random.nextInt(6) == 0) {
          out.write(buffer, 0, random.nextInt(count + 1));
          return;
        } else if (now == Fault.CORRUPT && random.nextInt(4) == 0) {
          buffer[random.nextInt(count)] ^= (byte) (1 << random.nextInt(8));
        }
        out.write(buffer, 0, count);
        out.flush();
      }
    } catch (IOException e) {
      return; // one of the two has gone
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }

  @Override
  public void close() throws IOException {
    listener.close();
  }
}
