package dev.kvasir.conformance;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.fail;

import dev.kvasir.Side;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Codec uniform: groups with a float16 minimum and range, and codes in planes of 64-byte vectors.
 *
 * <p>Levels go from the least element to the greatest (grid 0), or each stands in the middle of one of 2^n cells (grid 1,
 * the default at 1 and 2 bits).
 *
 * <p>The error bound. With u = 2^-24, encoding rounds x - lo, levels / range and their product once each: the scaled
 * value is off by at most 3.01 u levels, that is 3.01 u range in x. Rounding to a code adds step / 2. Decoding rounds
 * range / levels and the product with the code, 2.01 u range together, and the sum, u (|lo| + 1.01 range). In all
 *
 * <pre>    |x - x'| <= step / 2 + u (6.1 range + |lo|)</pre>
 *
 * with cells u (|lo| + range / 2) more, for the middle of the first cell is rounded too,
 *
 * and nothing at all where range = 0, for then x' = lo + 0.
 */
final class UniformReference implements ReferenceCodec {

  /** How an element becomes a code: what codecs with this page layout may differ in. */
  interface Coder {
    int code(float x, float lo, float range, int levels, boolean cells);

    /** What a group stores of its minimum and range, all of them bits of float16. */
    default int[] stored(int lo, int range, int bits) {
      return new int[] {lo, range};
    }

    /** By how much more than half a step and rounding in float32 an element may be off. */
    default double slack(double lo, double range, int bits) {
      return 0;
    }
  }

  private static final double U = 0x1p-24;
  private static final int CHANNEL = 0;
  private static final int TOKEN = 1;

  private final int cellBits;
  private final Coder coder;

  UniformReference() {
    this(2, UniformReference::code);
  }

  /** A codec with the same layout and other codes, which are those of cells up to so many bits, unless told otherwise. */
  UniformReference(int cellBits, Coder coder) {
    this.cellBits = cellBits;
    this.coder = coder;
  }

  private static int code(float x, float lo, float range, int levels, boolean cells) {
    float inverse = range > 0 ? (float) (cells ? levels + 1 : levels) / range : 0;
    float scaled = (x - lo) * inverse;
    return Math.min(levels, (int) (cells ? Math.floor(scaled) : Math.rint(scaled)));
  }

  @Override
  public Set<String> options() {
    return Set.of("axis", "group", "grid");
  }

  @Override
  public List<Map<String, Double>> variants(Side side, int headDim) {
    List<Map<String, Double>> list = new ArrayList<>();
    list.add(Map.of());
    list.add(Map.of("grid", 0.0));
    list.add(Map.of("grid", 1.0));
    for (double group : new double[] {32, 64, 128}) {
      list.add(Map.of("axis", (double) CHANNEL, "group", group, "grid", group == 64 ? 0.0 : 1.0));
      if (group < headDim) {
        list.add(Map.of("axis", (double) TOKEN, "group", group, "grid", group == 64 ? 1.0 : 0.0));
      }
    }
    list.add(Map.of("axis", (double) TOKEN, "group", (double) headDim));
    return list;
  }

  /** Both axes and grids, with their default group; and groups of 32, which d = 48 does not divide into, at two widths. */
  @Override
  public List<Map<String, Double>> goldenVariants(Side side, int headDim, int bits) {
    List<Map<String, Double>> list = new ArrayList<>();
    for (double axis : new double[] {CHANNEL, TOKEN}) {
      for (double grid : new double[] {0, 1}) {
        list.add(Map.of("axis", axis, "grid", grid));
        if (bits == 1 || bits == 3) {
          list.add(Map.of("axis", axis, "grid", grid, "group", 32.0));
        }
      }
    }
    return list;
  }

  @Override
  public float[] decode(PageShape shape, byte[] page, SideTable.View table) {
    return new Page(shape, page).decode();
  }

  @Override
  public void check(PageShape shape, float[] rows, byte[] page, SideTable.View table) {
    Page written = new Page(shape, page);
    assertEquals(written.size(), page.length, () -> "bytes of " + shape);
    checkDistances(written, rows);
    // The format leaves no choice: minimum, range rounded up, code, unused bits are all prescribed.
    Page prescribed = new Page(shape, new byte[page.length]);
    prescribed.encode(rows, coder);
    assertArrayEquals(prescribed.bytes, page, () -> "page bytes of " + shape);
  }

  private void checkDistances(Page page, float[] rows) {
    float[] decoded = page.decode();
    for (int token = 0; token < PageShape.TOKENS; token++) {
      for (int channel = 0; channel < page.d; channel++) {
        int i = token * page.d + channel;
        double lo = page.lo(token, channel);
        double range = page.range(token, channel);
        double rounding = page.cells ? 6.6 * range + 2 * Math.abs(lo) : 6.1 * range + Math.abs(lo);
        double bound =
            range == 0 ? 0 : range / page.steps() / 2 + U * rounding + coder.slack(lo, range, page.shape.bits());
        if (!(Math.abs((double) rows[i] - decoded[i]) <= bound)) {
          fail(page.shape + " token " + token + " channel " + channel + ": " + rows[i] + " became " + decoded[i]
              + ", further than " + bound);
        }
      }
    }
  }

  /** The bytes of a page, by place. */
  private final class Page {
    final PageShape shape;
    final byte[] bytes;
    final int d;
    final int levels;
    final boolean cells;
    private final boolean keys;
    private final int axis;
    private final int group;
    private final int entries;
    private final int codesOffset;
    private final int[] planeBits;

    Page(PageShape shape, byte[] bytes) {
      this.shape = shape;
      this.bytes = bytes;
      d = shape.headDim();
      levels = (1 << shape.bits()) - 1;
      keys = shape.side() == Side.KEYS;
      cells = shape.option("grid", shape.bits() <= cellBits ? 1 : 0) == 1;
      axis = shape.option("axis", keys ? CHANNEL : TOKEN);
      group = shape.option("group", axis == CHANNEL ? 128 : Math.min(d, 128));
      entries = axis == CHANNEL ? d : PageShape.TOKENS;
      int along = axis == CHANNEL ? PageShape.TOKENS : d;
      int groups = (along + group - 1) / group;
      codesOffset = (4 * entries * groups + 63) / 64 * 64;
      planeBits =
          switch (shape.bits()) {
            case 3 -> new int[] {2, 1};
            case 16 -> new int[] {8, 8};
            default -> new int[] {shape.bits()};
          };
    }

    int size() {
      int size = codesOffset;
      for (int bits : planeBits) {
        size += planeSize(bits);
      }
      return size;
    }

    int steps() {
      return cells ? levels + 1 : levels;
    }

    double lo(int token, int channel) {
      return Half.value(load16(parameterOffset(token, channel)));
    }

    double range(int token, int channel) {
      return Half.value(load16(parameterOffset(token, channel) + 2 * entries));
    }

    float[] decode() {
      float[] rows = new float[PageShape.TOKENS * d];
      for (int token = 0; token < PageShape.TOKENS; token++) {
        for (int channel = 0; channel < d; channel++) {
          float step = (float) range(token, channel) / (float) steps();
          float first = cells ? (float) lo(token, channel) + step / 2 : (float) lo(token, channel);
          rows[token * d + channel] = first + (float) code(token, channel) * step;
        }
      }
      return rows;
    }

    void encode(float[] rows, Coder coder) {
      int tokenStep = axis == CHANNEL ? group : 1;
      int channelStep = axis == CHANNEL ? 1 : group;
      for (int token = 0; token < PageShape.TOKENS; token += tokenStep) {
        for (int channel = 0; channel < d; channel += channelStep) {
          encodeGroup(rows, coder, token, token + tokenStep, channel, Math.min(channel + channelStep, d));
        }
      }
    }

    private void encodeGroup(
        float[] rows, Coder coder, int firstToken, int endToken, int firstChannel, int endChannel) {
      float lowest = Float.POSITIVE_INFINITY;
      float highest = Float.NEGATIVE_INFINITY;
      for (int token = firstToken; token < endToken; token++) {
        for (int channel = firstChannel; channel < endChannel; channel++) {
          lowest = Math.min(lowest, rows[token * d + channel]);
          highest = Math.max(highest, rows[token * d + channel]);
        }
      }
      int lowBits = Half.down(lowest + 0.0f); // a minimum of -0 is stored as +0; a float16 value as itself
      lowest = (float) Half.value(lowBits);
      // Exact where elements are float16 values: both are multiples of 2^-24 below 2^15.
      int rangeBits = Half.up((double) highest - (double) lowest);
      float range = (float) Half.value(rangeBits);
      int[] stored = coder.stored(lowBits, rangeBits, shape.bits());
      store16(parameterOffset(firstToken, firstChannel), stored[0]);
      store16(parameterOffset(firstToken, firstChannel) + 2 * entries, stored[1]);
      for (int token = firstToken; token < endToken; token++) {
        for (int channel = firstChannel; channel < endChannel; channel++) {
          storeCode(token, channel, coder.code(rows[token * d + channel], lowest, range, levels, cells));
        }
      }
    }

    private int parameterOffset(int token, int channel) {
      int entry = axis == CHANNEL ? channel : token;
      int number = (axis == CHANNEL ? token : channel) / group;
      return 2 * (number * 2 * entries + entry);
    }

    private int vectorsPerRow(int bits) {
      int contracted = keys ? d : PageShape.TOKENS;
      int perVector = 4 * (8 / bits);
      return (contracted + perVector - 1) / perVector;
    }

    private int planeSize(int bits) {
      return 64 * ((keys ? PageShape.TOKENS : d) / 16) * vectorsPerRow(bits);
    }

    /** Eight times the byte's offset in its plane, plus the lowest bit of the code in the byte. */
    private int bitOffset(int bits, int token, int channel) {
      int x = keys ? channel : token;
      int y = keys ? token : channel;
      int perVector = 4 * (8 / bits);
      int inVector = x % perVector;
      int vector = y / 16 * vectorsPerRow(bits) + x / perVector;
      return 8 * (64 * vector + 4 * (y % 16) + inVector % 4) + inVector / 4 * bits;
    }

    private int code(int token, int channel) {
      int code = 0;
      int shift = 0;
      int plane = codesOffset;
      for (int bits : planeBits) {
        int at = bitOffset(bits, token, channel);
        code |= (bytes[plane + at / 8] >> at % 8 & (1 << bits) - 1) << shift;
        shift += bits;
        plane += planeSize(bits);
      }
      return code;
    }

    private void storeCode(int token, int channel, int code) {
      int plane = codesOffset;
      int rest = code;
      for (int bits : planeBits) {
        int at = bitOffset(bits, token, channel);
        bytes[plane + at / 8] |= (byte) ((rest & (1 << bits) - 1) << at % 8);
        rest >>= bits;
        plane += planeSize(bits);
      }
    }

    private int load16(int offset) {
      return bytes[offset] & 0xFF | (bytes[offset + 1] & 0xFF) << 8;
    }

    private void store16(int offset, int value) {
      bytes[offset] = (byte) value;
      bytes[offset + 1] = (byte) (value >> 8);
    }
  }
}
