package dev.kvasir;

import static dev.kvasir.Testing.assertNames;
import static dev.kvasir.Testing.direct;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.kvasir.method.Uniform;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.ShortBuffer;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.function.BiFunction;
import java.util.function.Function;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Every kind of buffer gives what arrays give; every wrong one is refused and changes nothing. */
@Tag("jnicheck")
class BufferTest {

  private static final int TOKENS = 200;
  private static final int ROW = 64;
  private static final int QUERY = 128;
  private static final float CANARY = 12345f;

  private static final ByteOrder WRONG =
      ByteOrder.nativeOrder() == ByteOrder.LITTLE_ENDIAN ? ByteOrder.BIG_ENDIAN : ByteOrder.LITTLE_ENDIAN;

  /** Ways to present an array of floats as a buffer that a program may read. */
  private static final Map<String, Function<float[], FloatBuffer>> INPUTS = new LinkedHashMap<>();

  /** Ways to present room for floats as a buffer that a program may write, with room to spare on both sides. */
  private static final Map<String, BiFunction<Integer, Integer, FloatBuffer>> OUTPUTS = new LinkedHashMap<>();

  static {
    INPUTS.put("heap", FloatBuffer::wrap);
    INPUTS.put("heap, longer", data -> FloatBuffer.wrap(Arrays.copyOf(data, data.length + 100)));
    INPUTS.put("heap, position", data -> shifted(data, FloatBuffer.allocate(data.length + 20), 7));
    INPUTS.put("heap, slice", data -> shifted(data, FloatBuffer.allocate(data.length + 20), 9).slice());
    INPUTS.put("heap, read-only", data -> FloatBuffer.wrap(data).asReadOnlyBuffer());
    INPUTS.put("heap, view of bytes", data -> shifted(data, viewOfBytes(data.length + 20), 3));
    INPUTS.put("direct", Testing::direct);
    INPUTS.put("direct, position", data -> shifted(data, direct(data.length + 20), 5));
    INPUTS.put("direct, slice", data -> shifted(data, direct(data.length + 20), 11).slice());
    INPUTS.put("direct, read-only", data -> shifted(data, direct(data.length + 20), 2).asReadOnlyBuffer());
    OUTPUTS.put("heap", (position, count) -> FloatBuffer.allocate(count + 20).position(position));
    OUTPUTS.put(
        "heap, slice", (position, count) -> FloatBuffer.allocate(count + 30).position(9).slice().position(position));
    OUTPUTS.put("heap, view of bytes", (position, count) -> viewOfBytes(count + 20).position(position));
    OUTPUTS.put("direct", (position, count) -> direct(count + 20).position(position));
    OUTPUTS.put("direct, slice", (position, count) -> direct(count + 30).position(9).slice().position(position));
  }

  private final Random random = new Random(1);
  private final float[] keys = Testing.gaussian(random, TOKENS * ROW);
  private final float[] values = Testing.gaussian(random, TOKENS * ROW);
  private final float[] queries = Testing.gaussian(random, 3 * QUERY);
  private KvCache cache;
  private KvSequence sequence;

  @BeforeEach
  void open() {
    cache = Testing.cache(Testing.small()).method(Uniform.bits(4)).build();
    sequence = cache.newSequence();
  }

  @AfterEach
  void close() {
    cache.close();
  }

  private static FloatBuffer shifted(float[] data, FloatBuffer buffer, int position) {
    return buffer.put(position, data).position(position);
  }

  private static FloatBuffer viewOfBytes(int count) {
    return ByteBuffer.allocate(count * Float.BYTES).order(ByteOrder.nativeOrder()).asFloatBuffer();
  }

  private float[] attend(KvSequence of) {
    float[] output = new float[QUERY];
    of.attend(0, queries, output);
    return output;
  }

  @Test
  void appendTakesEveryKindOfBuffer() {
    sequence.append(0, keys, values, TOKENS);
    float[] expected = attend(sequence);
    INPUTS.forEach(
        (keyKind, keyMaker) ->
            INPUTS.forEach(
                (valueKind, valueMaker) -> {
                  String kinds = keyKind + " / " + valueKind;
                  FloatBuffer k = keyMaker.apply(keys);
                  FloatBuffer v = valueMaker.apply(values);
                  FloatBuffer[] before = {k.duplicate(), v.duplicate()};
                  try (KvSequence other = cache.newSequence()) {
                    other.append(0, k, v, TOKENS);
                    assertArrayEquals(expected, attend(other), kinds);
                  }
                  assertEquals(before[0], k, kinds);
                  assertEquals(before[1], v, kinds);
                  assertEquals(before[0].position(), k.position(), kinds);
                }));
  }

  @Test
  void attendTakesEveryKindOfBuffer() {
    sequence.append(0, keys, values, TOKENS);
    float[] expected = attend(sequence);
    INPUTS.forEach(
        (inputKind, inputMaker) ->
            OUTPUTS.forEach(
                (outputKind, outputMaker) -> {
                  String kinds = inputKind + " / " + outputKind;
                  FloatBuffer output = outputMaker.apply(4, QUERY);
                  for (int i = 0; i < output.limit(); i++) {
                    output.put(i, CANARY);
                  }
                  sequence.attend(0, inputMaker.apply(queries), output);
                  assertEquals(4, output.position(), kinds);
                  float[] all = new float[output.limit()];
                  output.get(0, all);
                  assertArrayEquals(expected, Arrays.copyOfRange(all, 4, 4 + QUERY), kinds);
                  Arrays.fill(all, 4, 4 + QUERY, CANARY);
                  for (float around : all) {
                    assertEquals(CANARY, around, kinds);
                  }
                }));
  }

  @Test
  void attendWritesOnlyTheFrontOfALongerArray() {
    sequence.append(0, keys, values, TOKENS);
    float[] output = new float[QUERY + 10];
    Arrays.fill(output, CANARY);
    sequence.attend(0, queries, output);
    assertArrayEquals(attend(sequence), Arrays.copyOf(output, QUERY));
    for (int i = QUERY; i < output.length; i++) {
      assertEquals(CANARY, output[i]);
    }
  }

  @Test
  void queryAndOutputMayBeTheSame() {
    sequence.append(0, keys, values, TOKENS);
    float[] expected = attend(sequence);
    float[] array = Arrays.copyOf(queries, QUERY);
    sequence.attend(0, array, array);
    assertArrayEquals(expected, array);
  }

  @Test
  void batchesTakeBuffersAndArrays() {
    sequence.append(0, keys, values, TOKENS);
    try (KvSequence other = cache.newSequence()) {
      other.append(0, values, keys, 7);
      List<KvSequence> batch = List.of(other, sequence, other);
      float[] expected = new float[3 * QUERY];
      cache.attend(0, batch, queries, expected);
      float[] single = new float[QUERY];
      sequence.attend(0, FloatBuffer.wrap(queries).position(QUERY), FloatBuffer.wrap(single));
      assertArrayEquals(single, Arrays.copyOfRange(expected, QUERY, 2 * QUERY));
      FloatBuffer output = direct(3 * QUERY);
      cache.attend(0, batch, direct(queries), output);
      float[] actual = new float[3 * QUERY];
      output.get(0, actual);
      assertArrayEquals(expected, actual);
    }
  }

  @Test
  void largeBatchesTakeDirectBuffers() {
    int count = 100;
    sequence.append(0, keys, values, TOKENS);
    FloatBuffer output = direct(count * QUERY);
    FloatBuffer input = direct(count * QUERY);
    for (int i = 0; i < count; i++) {
      input.put(i * QUERY, queries, 0, QUERY);
    }
    cache.attend(0, Collections.nCopies(count, sequence), input, output);
    float[] expected = attend(sequence);
    float[] actual = new float[QUERY];
    for (int i = 0; i < count; i++) {
      output.get(i * QUERY, actual);
      assertArrayEquals(expected, actual, 1e-5f);
    }
  }

  @Test
  void manyQueryTokensTakeBuffersAndArrays() {
    sequence.append(0, keys, values, TOKENS);
    float[] expected = new float[3 * QUERY];
    sequence.attend(0, queries, expected, 3);
    FloatBuffer output = direct(3 * QUERY);
    sequence.attend(0, direct(queries), output, 3);
    float[] actual = new float[3 * QUERY];
    output.get(0, actual);
    assertArrayEquals(expected, actual);
    cache.attend(0, List.of(sequence), queries, actual, 3);
    assertArrayEquals(expected, actual);
    float[] first = Arrays.copyOf(expected, QUERY);
    assertArrayEquals(attendAt(TOKENS - 2, 0), first, 1e-5f, "the first of three queries sees all but two tokens");
  }

  private float[] attendAt(int length, int query) {
    try (KvSequence shorter = cache.newSequence()) {
      shorter.append(0, keys, values, length);
      float[] output = new float[QUERY];
      shorter.attend(0, FloatBuffer.wrap(queries).position(query * QUERY), FloatBuffer.wrap(output));
      return output;
    }
  }

  @Test
  void halvesMeanWhatTheirFormatSays() {
    float[] roundKeys = new float[keys.length];
    short[] halfKeys = new short[keys.length];
    short[] bfloatValues = new short[keys.length];
    float[] roundValues = new float[keys.length];
    short[] halfValues = new short[keys.length];
    short[] bfloatKeys = new short[keys.length];
    float[] bfloatKeyFloats = new float[keys.length];
    float[] bfloatValueFloats = new float[keys.length];
    for (int i = 0; i < keys.length; i++) {
      roundKeys[i] = Testing.half(keys[i]);
      roundValues[i] = Testing.half(values[i]);
      halfKeys[i] = Testing.halfBits(roundKeys[i]);
      halfValues[i] = Testing.halfBits(roundValues[i]);
      bfloatKeys[i] = (short) (Float.floatToRawIntBits(keys[i]) >>> 16);
      bfloatValues[i] = (short) (Float.floatToRawIntBits(values[i]) >>> 16);
      bfloatKeyFloats[i] = Float.intBitsToFloat(bfloatKeys[i] << 16);
      bfloatValueFloats[i] = Float.intBitsToFloat(bfloatValues[i] << 16);
    }
    assertHalvesEqual(roundKeys, roundValues, halfKeys, halfValues, ElementType.FLOAT16);
    assertHalvesEqual(bfloatKeyFloats, bfloatValueFloats, bfloatKeys, bfloatValues, ElementType.BFLOAT16);
  }

  private void assertHalvesEqual(float[] k, float[] v, short[] halfKeys, short[] halfValues, ElementType format) {
    float[] expected;
    try (KvSequence floats = cache.newSequence()) {
      floats.append(0, k, v, TOKENS);
      expected = attend(floats);
    }
    ShortBuffer shiftedHeap = ShortBuffer.allocate(keys.length + 9).put(9, halfKeys).position(9);
    ShortBuffer shiftedDirect = direct(Arrays.copyOf(halfKeys, keys.length + 9)).put(9, halfKeys).position(9);
    ShortBuffer ofBytes =
        ByteBuffer.allocate(2 * keys.length).order(ByteOrder.nativeOrder()).asShortBuffer().put(0, halfKeys);
    List<ShortBuffer> keyKinds =
        List.of(
            ShortBuffer.wrap(halfKeys),
            ShortBuffer.wrap(halfKeys).asReadOnlyBuffer(),
            direct(halfKeys),
            shiftedHeap,
            shiftedHeap.slice(),
            shiftedDirect,
            shiftedDirect.slice(),
            ofBytes);
    for (ShortBuffer buffer : keyKinds) {
      for (ShortBuffer other : List.of(ShortBuffer.wrap(halfValues), direct(halfValues))) {
        int position = buffer.position();
        try (KvSequence halves = cache.newSequence()) {
          halves.append(0, buffer, other, TOKENS, format);
          assertArrayEquals(expected, attend(halves), format + " " + buffer + " " + other);
        }
        assertEquals(position, buffer.position());
      }
    }
  }

  @Test
  void wrongByteOrderIsRefusedWithAdvice() {
    FloatBuffer good = direct(keys);
    for (ByteBuffer bytes : List.of(ByteBuffer.allocateDirect(4 * keys.length), ByteBuffer.allocate(4 * keys.length))) {
      FloatBuffer bad = bytes.order(WRONG).asFloatBuffer();
      ShortBuffer badHalves = bytes.order(WRONG).asShortBuffer();
      assertAdvice(() -> sequence.append(0, bad, good, TOKENS), "keys");
      assertAdvice(() -> sequence.append(0, good, bad, TOKENS), "values");
      assertAdvice(
          () -> sequence.append(0, badHalves, direct(new short[keys.length]), TOKENS, ElementType.FLOAT16), "keys");
      assertAdvice(() -> sequence.attend(0, bad, direct(QUERY)), "queries");
      assertAdvice(() -> sequence.attend(0, direct(QUERY), bad), "outputs");
      assertAdvice(() -> cache.attend(0, List.of(sequence), bad, direct(QUERY)), "queries");
    }
    assertEquals(0, sequence.length(0));
  }

  private static void assertAdvice(Runnable call, String name) {
    assertNames(
        assertThrows(IllegalArgumentException.class, call::run), name, WRONG, "order(ByteOrder.nativeOrder())");
  }

  @Test
  void readOnlyOutputIsRefused() {
    sequence.append(0, keys, values, TOKENS);
    for (FloatBuffer output : List.of(direct(QUERY), FloatBuffer.allocate(QUERY))) {
      assertNames(
          assertThrows(
              IllegalArgumentException.class,
              () -> sequence.attend(0, direct(queries), output.asReadOnlyBuffer())),
          "outputs",
          "read-only");
    }
  }

  @Test
  void tooLittleIsRefusedWithBothNumbers() {
    int needed = TOKENS * ROW;
    float[] shortArray = new float[needed - 1];
    assertTooShort(() -> sequence.append(0, shortArray, values, TOKENS), "keys", needed - 1, needed);
    assertTooShort(() -> sequence.append(0, keys, shortArray, TOKENS), "values", needed - 1, needed);
    assertTooShort(() -> sequence.append(0, new float[0], values, TOKENS), "keys", 0, needed);
    FloatBuffer positioned = direct(keys).position(1);
    assertTooShort(() -> sequence.append(0, positioned, direct(values), TOKENS), "keys", needed - 1, needed);
    FloatBuffer limited = FloatBuffer.wrap(values).limit(needed - 2);
    assertTooShort(() -> sequence.append(0, direct(keys), limited, TOKENS), "values", needed - 2, needed);
    ShortBuffer halves = direct(new short[needed - 3]);
    assertTooShort(
        () -> sequence.append(0, halves, halves, TOKENS, ElementType.BFLOAT16), "keys", needed - 3, needed);
    assertEquals(0, sequence.length(0));

    sequence.append(0, keys, values, TOKENS);
    assertTooShort(() -> sequence.attend(0, new float[QUERY - 1], new float[QUERY]), "queries", QUERY - 1, QUERY);
    assertTooShort(() -> sequence.attend(0, queries, new float[QUERY - 1]), "outputs", QUERY - 1, QUERY);
    assertTooShort(() -> sequence.attend(0, direct(queries), direct(QUERY).position(1)), "outputs", QUERY - 1, QUERY);
    assertTooShort(() -> sequence.attend(0, queries, new float[2 * QUERY], 3), "outputs", 2 * QUERY, 3 * QUERY);
    assertTooShort(
        () -> cache.attend(0, List.of(sequence, sequence, sequence, sequence), queries, new float[4 * QUERY]),
        "queries",
        3 * QUERY,
        4 * QUERY);
  }

  private static void assertTooShort(Runnable call, String name, int present, int needed) {
    assertNames(assertThrows(IllegalArgumentException.class, call::run), name, present, needed);
  }
}
