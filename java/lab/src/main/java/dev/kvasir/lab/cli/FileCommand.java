package dev.kvasir.lab.cli;

import com.github.luben.zstd.ZstdIOException;
import dev.kvasir.error.KvFileException;
import dev.kvasir.file.FileInfo;
import dev.kvasir.file.FileOptions;
import dev.kvasir.file.KvFile;
import dev.kvasir.internal.json.FileReplacement;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Locale;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.ParentCommand;
import picocli.CommandLine.Spec;

@Command(
    name = "file",
    description = "Looks at saved sequences: what they are, whether they are whole.",
    mixinStandardHelpOptions = true,
    synopsisSubcommandLabel = "COMMAND")
final class FileCommand implements Runnable {

  @ParentCommand private Main main;
  @Spec private CommandSpec spec;

  @Override
  public void run() {
    spec.commandLine().usage(spec.commandLine().getOut());
  }

  @Command(name = "info", description = "Says what a file holds and what cache it belongs to.", mixinStandardHelpOptions = true)
  int info(@Parameters(paramLabel = "FILE", description = "A saved sequence.") Path file) throws IOException {
    FileInfo info = checked(file, file);
    print(file, info);
    main.out().print(info.description());
    return 0;
  }

  @Command(name = "verify", description = "Reads all of a file and checks every byte.", mixinStandardHelpOptions = true)
  int verify(@Parameters(paramLabel = "FILE", description = "A saved sequence.") Path file) throws IOException {
    long start = System.nanoTime();
    FileInfo info = checked(file, file);
    print(file, info);
    double seconds = (System.nanoTime() - start) / 1e9;
    main.out().printf(Locale.ROOT, "whole: every byte checked, %.2f GB/s%n", info.bytes() / seconds / 1e9);
    return 0;
  }

  @Command(
      name = "convert",
      description = {
        "Writes a file anew in the newest version of the format, once all of it is checked.",
        "A file that was compressed is unpacked."
      },
      mixinStandardHelpOptions = true)
  int convert(
      @Parameters(paramLabel = "FILE", description = "A saved sequence, of any version.") Path file,
      @Parameters(paramLabel = "OUT", description = "The new file.") Path target,
      @Option(names = "--compress", description = "As a Zstandard stream, to be kept: only convert reads it.") boolean compress)
      throws IOException {
    if (!CompressedFile.is(file)) {
      return rewrite(file, file, target, compress);
    }
    if (compress) {
      throw new ParameterException(spec.commandLine(), file + " is compressed already");
    }
    // Beside the new file, where there is room for it: what was there stays until the whole of this one is checked.
    Path unpacked = Files.createTempFile(target.toAbsolutePath().getParent(), "kvasir-", ".kv");
    unpacked.toFile().deleteOnExit(); // a program that is stopped does not get to the end of this
    try {
      FileReplacement.write(unpacked, to -> unpack(file, to));
      return rewrite(unpacked, file, target, false);
    } finally {
      Files.deleteIfExists(unpacked);
    }
  }

  private static void unpack(Path file, FileChannel to) throws IOException {
    try {
      CompressedFile.unpack(file, to);
    } catch (ZstdIOException e) {
      throw new IOException(file + ": " + e.getMessage(), e);
    }
  }

  /** What is in a file whose user knows it by a name. */
  private FileInfo checked(Path file, Path name) throws IOException {
    try {
      return KvFile.verify(file, options());
    } catch (KvFileException e) {
      String is = e.reason() == KvFileException.Reason.FOREIGN ? " is no saved sequence: " : ": ";
      throw new KvFileException(e.reason(), name + is + e.getMessage(), e);
    }
  }

  private int rewrite(Path file, Path name, Path target, boolean compress) throws IOException {
    FileInfo info = checked(file, name);
    // There is one version so far: its files are as they are to be.
    try (FileChannel from = FileChannel.open(file, StandardOpenOption.READ)) {
      FileReplacement.write(target, to -> copy(from, info.bytes(), to, compress));
    }
    if (!compress) {
      print(target, checked(target, target));
      return 0;
    }
    long bytes = Files.size(target);
    main.out().printf(Locale.ROOT, "%s: %d bytes, %.1f %% of %d%n", target, bytes, 100.0 * bytes / info.bytes(), info.bytes());
    return 0;
  }

  private static void copy(FileChannel from, long bytes, FileChannel to, boolean compress) throws IOException {
    if (compress) {
      CompressedFile.pack(from, bytes, to);
      return;
    }
    for (long at = 0; at < bytes; ) {
      long moved = from.transferTo(at, bytes - at, to);
      if (moved <= 0) {
        throw new IOException("the file ended at " + at + " bytes: somebody has cut it meanwhile");
      }
      at += moved;
    }
  }

  private FileOptions options() {
    return FileOptions.defaults().cancelWhen(main::stopped);
  }

  private void print(Path file, FileInfo info) {
    main.out()
        .printf(
            Locale.ROOT,
            "%s: %d tokens, %d layers, %d blocks, %d token ids, %d bytes, fingerprint %s%n",
            file,
            info.tokens(),
            info.lengths().size(),
            info.blocks(),
            info.tokenIds(),
            info.bytes(),
            info.fingerprint());
  }
}
