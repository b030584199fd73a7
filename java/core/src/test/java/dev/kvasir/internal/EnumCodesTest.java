package dev.kvasir.internal;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.kvasir.ElementType;
import dev.kvasir.KvCache;
import dev.kvasir.Kvasir;
import dev.kvasir.Precision;
import dev.kvasir.ShrinkPolicy;
import dev.kvasir.Side;
import dev.kvasir.error.KvFileException;
import dev.kvasir.internal.jni.Native;
import dev.kvasir.method.Axis;
import dev.kvasir.method.MixKvq;
import dev.kvasir.method.PatternKv;
import dev.kvasir.method.PmKvq;
import dev.kvasir.rope.RopePairs;
import dev.kvasir.tensor.TensorType;
import java.util.Arrays;
import java.util.List;
import java.util.function.ToIntFunction;
import org.junit.jupiter.api.Test;

/** What crosses into native code or reaches files: numbers and names that must never change. */
class EnumCodesTest {

  private static <E extends Enum<E>> void assertCodes(String expected, Class<E> type, ToIntFunction<E> code) {
    List<String> all = Arrays.stream(type.getEnumConstants()).map(each -> each + "=" + code.applyAsInt(each)).toList();
    assertEquals(expected, String.join(" ", all));
  }

  @Test
  void codesStayWhatTheyAre() {
    assertCodes("KEYS=" + Native.kKeys + " VALUES=" + Native.kValues, Side.class, Side::code);
    assertCodes(
        "FLOAT32=" + Native.kFloat32 + " FLOAT16=" + Native.kFloat16 + " BFLOAT16=" + Native.kBFloat16,
        ElementType.class, ElementType::code);
    assertCodes("EXACT=" + Native.kExact + " FAST=" + Native.kFast, Precision.class, Precision::code);
    assertCodes("OLDEST=" + Native.kOldest + " LAYER=" + Native.kLayer, ShrinkPolicy.class, ShrinkPolicy::code);
    assertCodes("KEYS=0 VALUES=1", Side.class, Side::code);
    assertCodes(
        "FOREIGN=1 VERSION=2 TRUNCATED=3 CHECKSUM=4 MISMATCH=5 INVALID=6 INCOMPLETE=7 ORDER=8 CANCELLED=9",
        KvFileException.Reason.class, KvFileException.Reason::code);
    assertCodes("HALVES=0 NEIGHBOURS=1", RopePairs.class, RopePairs::code);
    assertCodes("CHANNEL=0 TOKEN=1", Axis.class, Axis::code);
    assertCodes("MIN_MAX=0 EUCLIDEAN=1", PatternKv.Metric.class, PatternKv.Metric::code);
    assertCodes("EQUIVALENT=0 DIRECT=1 MODIFIED=2", PmKvq.Shift.class, PmKvq.Shift::code);
    assertCodes("NORMALISED=0 ABSOLUTE=1 BUDGET=2", MixKvq.Mode.class, MixKvq.Mode::code);
  }

  @Test
  void typesOfTensorsAreWrittenByTheNamesOfTheFormat() {
    assertEquals(
        "[F64, F32, F16, BF16, F8_E4M3, F8_E5M2, I64, U64, I32, U32, I16, U16, I8, U8, BOOL]",
        Arrays.toString(TensorType.values()));
  }

  @Test
  void aPageHasAsManyTokensAsInNativeCode() {
    Kvasir.load();
    assertEquals(Native.kPageTokens(), KvCache.PAGE_TOKENS);
  }
}
