package dev.kvasir.redis;

import java.io.BufferedInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.Function;

/** A server that says what it is told to. */
final class FakeNode implements AutoCloseable {

  private final ServerSocket server;
  private final List<Socket> sockets = new CopyOnWriteArrayList<>();
  private final Function<String, String> answers;

  /**
   * A node on a port of its own.
   *
   * @param answers gets a command's name, returns what is sent, or an empty string for nothing at all
   */
  FakeNode(Function<String, String> answers) {
    this.answers = answers;
    try {
      this.server = new ServerSocket(0, 50, InetAddress.getByName("127.0.0.1"));
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
    start(this::accept);
  }

  int port() {
    return server.getLocalPort();
  }

  /** Ends it as a machine that loses its power: connections break. */
  @Override
  public void close() {
    try {
      server.close();
      for (Socket socket : sockets) {
        socket.close();
      }
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  private void accept() {
    try {
      while (true) {
        Socket socket = server.accept();
        sockets.add(socket);
        start(() -> talk(socket));
      }
    } catch (IOException e) {
      // closed
    }
  }

  private void talk(Socket socket) {
    try {
      InputStream in = new BufferedInputStream(socket.getInputStream());
      OutputStream out = socket.getOutputStream();
      while (true) {
        List<String> words = new ArrayList<>();
        for (int left = number(in); left > 0; left--) {
          words.add(new String(in.readNBytes(number(in)), StandardCharsets.ISO_8859_1));
          in.skipNBytes(2);
        }
        out.write(answers.apply(words.get(0).toUpperCase()).getBytes(StandardCharsets.ISO_8859_1));
      }
    } catch (IOException e) {
      // closed
    }
  }

  /** What follows the first character of a line. */
  private static int number(InputStream in) throws IOException {
    int number = 0;
    in.read();
    for (int c = in.read(); c != '\r'; c = in.read()) {
      if (c < 0) {
        throw new EOFException();
      }
      number = 10 * number + c - '0';
    }
    in.read();
    return number;
  }

  private static void start(Runnable task) {
    Thread thread = new Thread(task, "fake node");
    thread.setDaemon(true);
    thread.start();
  }
}
