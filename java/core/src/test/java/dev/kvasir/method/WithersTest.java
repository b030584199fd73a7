package dev.kvasir.method;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvGeometry;
import dev.kvasir.calibrate.KeyScaling;
import dev.kvasir.codebook.CommVqCodebooks;
import dev.kvasir.rope.Rope;
import dev.kvasir.rope.RopePairs;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.RecordComponent;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Every wither of every record of options changes the component of its name, and no other. */
class WithersTest {

  private static final KvGeometry GEOMETRY =
      KvGeometry.builder().layers(1).queryHeads(1).kvHeads(1).headDim(32).build();

  static List<Record> records() {
    return List.of(
        Uniform.bits(2),
        PatternKv.bits(2),
        PmKvq.floor(2),
        MixKvq.budget(2.5),
        Mixed.of(Uniform.bits(2), Uniform.bits(4)),
        CommVq.of(CommVqCodebooks.builder(GEOMETRY).build(), Rope.plain(RopePairs.HALVES, 10000, 32)),
        KeyScaling.Options.of(Rope.plain(RopePairs.HALVES, 10000, 32)));
  }

  @ParameterizedTest
  @MethodSource("records")
  void changesItsComponent(Record record) throws ReflectiveOperationException {
    int withers = 0;
    for (Method method : record.getClass().getDeclaredMethods()) {
      if (Modifier.isStatic(method.getModifiers()) || method.getParameterCount() != 1
          || method.getReturnType() != record.getClass()) {
        continue;
      }
      withers++;
      Object old = record.getClass().getMethod(method.getName()).invoke(record);
      Object value = other(old);
      Object changed = method.invoke(record, value);
      assertNotEquals(record, changed);
      for (RecordComponent component : record.getClass().getRecordComponents()) {
        Object expected =
            component.getName().equals(method.getName()) ? value : component.getAccessor().invoke(record);
        assertEquals(expected, component.getAccessor().invoke(changed), method + " and " + component);
      }
      assertEquals(record, method.invoke(changed, old));
    }
    assertTrue(withers >= 2, record + " has " + withers);
  }

  /** Another value that no record refuses. */
  private static Object other(Object value) {
    if (value instanceof Integer number) {
      return switch (number) {
        case 0 -> 32;
        case 16 -> 8;
        case 32 -> 64;
        default -> number == 2 ? 4 : 2;
      };
    }
    if (value instanceof Double number) {
      return number / 2;
    }
    if (value instanceof Boolean flag) {
      return !flag;
    }
    if (value instanceof List<?>) {
      return List.of(0.5);
    }
    if (value instanceof Rope rope) {
      return rope.linear(2);
    }
    return Arrays.stream(value.getClass().getEnumConstants()).filter(each -> each != value).findFirst().orElseThrow();
  }
}
