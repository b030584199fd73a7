package dev.kvasir.runner.text;

import dev.kvasir.runner.file.ModelException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * SentencePiece's BPE: spaces become {@code ▁}, one stands before every text, characters are merged, and what is no
 * token is written as bytes.
 *
 * <p>Which pair is merged first is said by a list of merges, or by scores of the pieces that they make: the highest
 * first.
 */
final class SentencePieceTokenizer extends PieceTokenizer {

  static final char SPACE = '\u2581';

  /** Real pieces have some dozens; the work on one grows with the square of it. */
  private static final int LONGEST = 1024;

  /** Whether a text begins with a space that was not said. */
  enum SpaceBefore {
    NEVER,
    /** As does what follows a token that is cut off before. */
    ALWAYS,
    /** Where it begins with none, nor with a token that is never cut. */
    UNLESS_THERE,
    /** Where it, or what follows such a token, begins with none. */
    EACH_UNLESS_THERE
  }

  /**
   * What a file says of such a tokenizer.
   *
   * @param vocabulary ids by piece; bytes are {@code <0x00>} to {@code <0xFF>}
   * @param scores by id, or null where there are merges
   * @param merges pairs of pieces, the earliest first, or null where there are scores
   * @param spaceBefore whether every text begins with a space
   * @param specials tokens beside those
   * @param prefix tokens before every text
   * @param unknown what stands for what cannot be written
   */
  record Description(
      Map<String, Integer> vocabulary,
      float @Nullable [] scores,
      @Nullable List<String[]> merges,
      SpaceBefore spaceBefore,
      SpecialTokens specials,
      int[] prefix,
      int unknown) {}

  private final Description file;
  private final int[] byteTokens = new int[256];

  SentencePieceTokenizer(Description file, String place) throws ModelException {
    super(file.vocabulary(), file.specials(), file.prefix());
    this.file = file;
    Arrays.fill(byteTokens, file.unknown());
    for (Map.Entry<String, Integer> entry : file.vocabulary().entrySet()) {
      int written = byteOf(entry.getKey());
      if (written >= 0) {
        byteTokens[written] = entry.getValue();
        write(entry.getValue(), new byte[] {(byte) written});
      } else {
        write(entry.getValue(), entry.getKey().replace(SPACE, ' ').getBytes(StandardCharsets.UTF_8));
      }
    }
    if (file.merges() == null && file.scores() == null) {
      throw new ModelException(place + ": neither scores nor merges");
    }
    finish(file.merges() == null ? List.of() : file.merges(), place);
    if (file.merges() == null && file.scores() != null) {
      addByScores(file.scores(), place);
    }
  }

  /** Every way to cut a piece in two pieces is a rule; equal scores are of equal rank. */
  private void addByScores(float[] scores, String place) throws ModelException {
    float[] falling = scores.clone();
    Arrays.sort(falling);
    BitSet lengths = new BitSet();
    for (String piece : file.vocabulary().keySet()) {
      lengths.set(piece.length());
    }
    for (Map.Entry<String, Integer> entry : file.vocabulary().entrySet()) {
      String piece = entry.getKey();
      if (file.specials().bytes().containsKey(entry.getValue()) || byteOf(piece) >= 0) {
        continue;
      }
      if (piece.length() > LONGEST) {
        throw new ModelException(
            place + ": a piece has " + piece.length() + " characters; up to " + LONGEST + " can be read");
      }
      int rank = -Arrays.binarySearch(falling, scores[entry.getValue()]);
      for (int cut = piece.offsetByCodePoints(0, Math.min(1, piece.length())); cut < piece.length(); ) {
        if (lengths.get(cut) && lengths.get(piece.length() - cut)) {
          Integer left = file.vocabulary().get(piece.substring(0, cut));
          Integer right = file.vocabulary().get(piece.substring(cut));
          if (left != null && right != null) {
            merger.add(left, right, rank, entry.getValue());
          }
        }
        cut = piece.offsetByCodePoints(cut, 1);
      }
    }
  }

  @Override
  public int[] encode(byte[] text) {
    IntStream.Builder tokens = IntStream.builder();
    SpaceBefore before = file.spaceBefore();
    boolean[] due = {before != SpaceBefore.NEVER};
    Utf8.read(
        text,
        valid ->
            file.specials()
                .cut(
                    valid,
                    part -> {
                      encodeText((due[0] && !hasSpace(part) ? " " : "") + part, tokens);
                      due[0] = false;
                    },
                    added -> {
                      tokens.add(added.id());
                      due[0] =
                          before == SpaceBefore.EACH_UNLESS_THERE
                              || before == SpaceBefore.ALWAYS && (due[0] || added.apart());
                    }),
        broken -> {
          addBytes(broken, tokens);
          due[0] = false;
        });
    return tokens.build().toArray();
  }

  private boolean hasSpace(String text) {
    return file.spaceBefore() != SpaceBefore.ALWAYS && (text.charAt(0) == ' ' || text.charAt(0) == SPACE);
  }

  private void encodeText(String text, IntStream.Builder out) {
    String escaped = text.replace(' ', SPACE);
    int[] characters = escaped.codePoints().toArray();
    int[] token = new int[characters.length];
    for (int i = 0; i < token.length; i++) {
      // A character that is no piece is remembered as the negative of its place, less one.
      Integer id = file.vocabulary().get(Character.toString(characters[i]));
      token[i] = id == null || file.specials().bytes().containsKey(id) ? -i - 1 : id;
    }
    IntStream.Builder merged = IntStream.builder();
    merger.merge(token, merged);
    for (int found : merged.build().toArray()) {
      if (found >= 0) {
        out.add(found);
      } else {
        addBytes(Character.toString(characters[-found - 1]).getBytes(StandardCharsets.UTF_8), out);
      }
    }
  }

  private void addBytes(byte[] text, IntStream.Builder out) {
    for (byte b : text) {
      out.add(byteTokens[b & 0xFF]);
    }
  }

  @Override
  String lacking() {
    return "which a merge names";
  }

  /** The byte that {@code <0x41>} stands for, or -1. */
  private static int byteOf(String piece) {
    if (piece.length() != 6 || !piece.startsWith("<0x") || piece.charAt(5) != '>') {
      return -1;
    }
    int high = Character.digit(piece.charAt(3), 16);
    int low = Character.digit(piece.charAt(4), 16);
    return high < 0 || low < 0 ? -1 : 16 * high + low;
  }
}
