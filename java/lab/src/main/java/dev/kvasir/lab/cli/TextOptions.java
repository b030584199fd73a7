package dev.kvasir.lab.cli;

import dev.kvasir.lab.inspect.Recording;
import dev.kvasir.runner.Model;
import dev.kvasir.runner.file.ModelException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.TreeSet;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.Spec;

/** A model and a text for it to read. */
final class TextOptions {

  @Parameters(paramLabel = "MODEL", description = "A GGUF file, or a model's folder: config.json, safetensors, tokenizer.json.")
  private Path folder;

  @Option(
      names = "--text",
      paramLabel = "FILE",
      description = "What the model reads. Default: the first *_val.bin in MODEL/tests.")
  private @Nullable Path text;

  @Option(names = "--tokens", paramLabel = "N", description = "How much of it. Default: ${DEFAULT-VALUE}.")
  private int tokens = 1024;

  @Spec(Spec.Target.MIXEE)
  private CommandSpec spec;

  /** Throws ParameterException where a number is none that can be meant. */
  void check() {
    Range.require(spec, tokens >= 2, "--tokens", tokens, "2 or more");
  }

  /** Where the model is. */
  Path path() {
    return folder;
  }

  /** The model's name. */
  String name() {
    return folder.toAbsolutePath().normalize().getFileName().toString();
  }

  /** Lets the model read. */
  Recording record(Main main) throws IOException {
    Model model = Model.load(folder);
    if (tokens > model.config().maxPositions()) {
      throw new IllegalArgumentException(
          "--tokens is " + tokens + "; the model was made for " + model.config().maxPositions());
    }
    Path file = text == null ? standard() : text;
    // No token of ours stands for more than some bytes; 16 for each are enough.
    byte[] bytes = bytes(file, 16L * tokens);
    int[] all =
        IntStream.concat(
                Arrays.stream(model.tokenizer().prefix()), Arrays.stream(model.tokenizer().encode(bytes)))
            .limit(tokens)
            .toArray();
    if (all.length < 2) {
      throw new ModelException(file + " holds no text");
    }
    main.out().println(name() + " reads " + all.length + " tokens of " + file);
    main.out().flush();
    return Recording.of(model, all);
  }

  /** So much of a text, or all of it. */
  static byte[] bytes(Path text, long most) throws IOException {
    if (Files.isDirectory(text)) {
      throw new ModelException(text + " is a folder, and no text");
    }
    try (InputStream in = Files.newInputStream(text)) {
      return in.readNBytes((int) Math.min(Integer.MAX_VALUE - 8, most));
    }
  }

  /** A folder that an option names, or another where it is not given. */
  static Path folder(String option, @Nullable Path given, Path otherwise) {
    if (given != null && !Files.isDirectory(given)) {
      throw new IllegalArgumentException(option + " " + given + " is no folder");
    }
    return given == null ? otherwise : given;
  }

  private Path standard() throws IOException {
    Path tests = (Files.isDirectory(folder) ? folder : folder.toAbsolutePath().getParent()).resolve("tests");
    TreeSet<Path> found = new TreeSet<>();
    if (Files.isDirectory(tests)) {
      try (DirectoryStream<Path> files = Files.newDirectoryStream(tests, "*_val.bin")) {
        files.forEach(found::add);
      }
    }
    if (found.isEmpty()) {
      throw new ModelException(tests + " holds no *_val.bin; name a text with --text");
    }
    return found.first();
  }
}
