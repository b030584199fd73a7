package dev.kvasir.lab.cli;

import com.github.luben.zstd.ZstdInputStream;
import com.github.luben.zstd.ZstdOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;

/**
 * Saved sequences as Zstandard streams, for files that are kept and seldom read. The stream has a checksum, and the
 * sequence in it has its own.
 */
final class CompressedFile {

  private static final byte[] BEGIN = {(byte) 0x28, (byte) 0xB5, 0x2F, (byte) 0xFD};
  private static final int LEVEL = 3;

  private CompressedFile() {}

  /** Whether a file begins as such a stream. */
  static boolean is(Path file) throws IOException {
    if (Files.isDirectory(file)) {
      return false;
    }
    try (InputStream in = Files.newInputStream(file)) {
      return Arrays.equals(in.readNBytes(BEGIN.length), BEGIN);
    }
  }

  static void pack(FileChannel from, long bytes, FileChannel to) throws IOException {
    // Streams are not closed: the channels are others'.
    InputStream in = Channels.newInputStream(from.position(0));
    ZstdOutputStream out = new ZstdOutputStream(Channels.newOutputStream(to), LEVEL).setCloseFrameOnFlush(true);
    out.setChecksum(true);
    byte[] buffer = new byte[1 << 20];
    for (long left = bytes; left > 0; ) {
      int read = in.read(buffer, 0, (int) Math.min(buffer.length, left));
      if (read < 0) {
        throw new IOException("the file ended " + left + " bytes early: somebody has cut it meanwhile");
      }
      out.write(buffer, 0, read);
      left -= read;
    }
    out.flush();
  }

  static void unpack(Path file, FileChannel to) throws IOException {
    try (InputStream in = new ZstdInputStream(Files.newInputStream(file))) {
      OutputStream out = Channels.newOutputStream(to);
      in.transferTo(out);
    }
  }
}
