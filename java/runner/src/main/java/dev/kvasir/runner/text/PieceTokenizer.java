package dev.kvasir.runner.text;

import dev.kvasir.runner.file.ModelException;
import java.io.ByteArrayOutputStream;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;

/** What tokenizers of pieces that are merged have in common: a vocabulary, rules, and the way back to bytes. */
abstract class PieceTokenizer implements Tokenizer {

  private final Map<String, Integer> vocabulary;
  private final SpecialTokens specials;
  private final int[] prefix;
  private final Map<Integer, byte[]> bytes = new HashMap<>();
  final Merger merger = new Merger();

  /** Subclasses add the bytes of their pieces, then call {@link #finish}. */
  PieceTokenizer(Map<String, Integer> vocabulary, SpecialTokens specials, int[] prefix) {
    this.vocabulary = vocabulary;
    this.specials = specials;
    this.prefix = prefix;
  }

  /** A token stands for these bytes, if it is no special one. */
  final void write(int token, byte[] text) {
    bytes.put(token, specials.bytes().getOrDefault(token, text));
  }

  /** Adds the tokens beside the vocabulary, and rules in the order of the list. */
  final void finish(List<String[]> merges, String place) throws ModelException {
    bytes.putAll(specials.bytes());
    for (String[] pair : merges) {
      merger.add(id(pair[0], place), id(pair[1], place), merger.rules(), id(pair[0] + pair[1], place));
    }
  }

  final int id(String piece, String place) throws ModelException {
    Integer id = vocabulary.get(piece);
    if (id == null) {
      throw new ModelException(place + ": the vocabulary lacks \"" + piece + "\", " + lacking());
    }
    return id;
  }

  /** What it means that a piece is missing. */
  abstract String lacking();

  @Override
  public final byte[] decode(int... tokens) {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    for (int token : tokens) {
      out.writeBytes(bytes.getOrDefault(token, new byte[0]));
    }
    return out.toByteArray();
  }

  @Override
  public final int[] prefix() {
    return prefix.clone();
  }

  @Override
  public final OptionalInt special(String name) {
    return specials.find(name);
  }
}
