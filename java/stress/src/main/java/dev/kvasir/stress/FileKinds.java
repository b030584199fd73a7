package dev.kvasir.stress;

import dev.kvasir.KvGeometry;
import dev.kvasir.calibrate.Profile;
import dev.kvasir.codebook.CommVqCodebooks;
import dev.kvasir.codebook.KeyCodebook;
import dev.kvasir.codebook.ValueCodebook;
import dev.kvasir.rope.RopePairs;
import dev.kvasir.runner.Model;
import dev.kvasir.runner.TinyModel;
import dev.kvasir.tensor.Safetensors;
import dev.kvasir.tensor.TensorType;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;

/** All kinds of files that are read, with a good one of each. */
final class FileKinds {

  private FileKinds() {}

  static List<FileKind> all(Path folder, Random random) throws IOException {
    List<FileKind> kinds = new ArrayList<>();
    KvGeometry geometry = KvGeometry.builder().layers(2).queryHeads(2).kvHeads(1).headDim(32).build();
    CommVqCodebooks codebooks =
        CommVqCodebooks.builder(geometry)
            .keys(0, new KeyCodebook(1, 32, RopePairs.HALVES, 1, 16, Recipes.gaussian(random, 16 * 32, 1)))
            .values(1, new ValueCodebook(32, 16, Recipes.gaussian(random, 16 * 32, 1), null))
            .build();
    Path saved = folder.resolve("codebooks.safetensors");
    codebooks.save(saved);
    kinds.add(new FileKind("codebooks", saved, path -> CommVqCodebooks.load(path, geometry)));
    kinds.add(new FileKind("safetensors", saved, FileKinds::readTensors));
    Path profile = folder.resolve("model.profile");
    Profile.builder(geometry).codebooks(codebooks).note("model", "none").build().save(profile);
    kinds.add(new FileKind("profile", profile, path -> Profile.load(path).codebooks()));
    Path gguf = folder.resolve("model.gguf");
    TinyModel.gguf(gguf, "llama", 7);
    kinds.add(new FileKind("gguf", gguf, FileKinds::readModel));
    Path model = Files.createDirectory(folder.resolve("model"));
    TinyModel.llama(model, 7, TensorType.F16);
    try (var files = Files.list(model)) {
      files.sorted().forEach(path -> kinds.add(new FileKind(path.getFileName().toString(), path, any -> readModel(model))));
    }
    return kinds;
  }

  /** Loads a model, and lets it split a text into tokens. */
  private static void readModel(Path path) throws IOException {
    Model.load(path).tokenizer().encode("The history of the city begins in the ");
  }

  private static void readTensors(Path path) throws IOException {
    try (Safetensors file = Safetensors.open(path)) {
      for (String name : file.entries().keySet()) {
        file.read(name);
      }
    }
  }
}
