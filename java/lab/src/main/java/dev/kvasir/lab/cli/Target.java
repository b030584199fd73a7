package dev.kvasir.lab.cli;

import dev.kvasir.calibrate.Profile;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** Where a command writes what takes long to find: looked at before that, so that nothing is found in vain. */
final class Target {

  private Target() {}

  /** Throws IOException that names what is in the way of a file; makes nothing. */
  static void check(Path file) throws IOException {
    if (Files.exists(file) && !Files.isRegularFile(file)) {
      throw new IOException(file + " is there and no regular file");
    }
    checkFolder(file.toAbsolutePath().getParent());
  }

  /** The same for a folder that files are to be written to, and that need not be there yet. */
  static void checkFolder(Path folder) throws IOException {
    Path there = folder.toAbsolutePath();
    while (!Files.exists(there)) {
      there = there.getParent();
    }
    if (!Files.isDirectory(there)) {
      throw new IOException(there + " is there and no folder");
    }
    if (!Files.isWritable(there)) {
      throw new IOException(there + " is a folder that nothing may be written to");
    }
  }

  /** Writes a profile, and its folder if need be. */
  static void save(Profile profile, Path file) throws IOException {
    Files.createDirectories(file.toAbsolutePath().getParent());
    profile.save(file);
  }
}
