package dev.kvasir.method;

import static dev.kvasir.Testing.assertNames;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.kvasir.CodecChoice;
import dev.kvasir.KvMethod;
import dev.kvasir.Need;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Test;

class KvMethodTest {

  @Test
  void uniformDefaultsAreSafe() {
    Uniform method = Uniform.bits(2);
    assertEquals(new CodecChoice("uniform", 2, Map.of("axis", 0.0, "grid", 1.0)), method.keys(0));
    assertEquals(new CodecChoice("uniform", 2, Map.of("axis", 1.0, "grid", 1.0)), method.values(0));
    assertEquals(0, method.window());
    assertEquals(4, method.sinks());
    for (int bits : new int[] {1, 2, 3, 4, 8, 16}) {
      assertEquals(bits <= 2 ? 1.0 : 0.0, Uniform.bits(bits).keys(0).options().get("grid"));
      assertEquals(0.0, Uniform.bits(bits).grid(Grid.ENDS).keys(0).options().get("grid"));
      assertEquals(1.0, Uniform.bits(bits).grid(Grid.CELLS).values(0).options().get("grid"));
    }
  }

  @Test
  void kiviIsThePaper() {
    Uniform method = Uniform.kivi(2);
    assertEquals(new CodecChoice("uniform", 2, Map.of("axis", 0.0, "group", 32.0, "grid", 0.0)), method.keys(0));
    assertEquals(new CodecChoice("uniform", 2, Map.of("axis", 1.0, "group", 32.0, "grid", 0.0)), method.values(0));
    assertEquals(0, method.window());
    assertEquals(0, method.sinks());
  }

  @Test
  void methodsSayWhatTheyNeed() {
    assertEquals(Set.of(), Uniform.bits(2).needs());
    assertEquals(Set.of(), PmKvq.floor(2).needs());
    assertEquals(Set.of(Need.KEY_SCALING), PmKvq.paper(2).needs());
    assertEquals(Set.of(Need.OBSERVED_QUERIES), MixKvq.budget(3).needs());
    assertEquals(Set.of(), MixKvq.budget(3).queryAware(false).needs());
    assertEquals(Set.of(Need.OBSERVED_QUERIES), Mixed.of(MixKvq.budget(3), PmKvq.paper(2)).needs());
    assertEquals(Set.of(), Mixed.of(Uniform.bits(2), MixKvq.budget(3)).needs());
  }

  @Test
  void uniformSettingsReachTheCodec() {
    Uniform method =
        Uniform.bits(2)
            .keyBits(4)
            .valueBits(3)
            .keyGroup(32)
            .valueGroup(64)
            .keyAxis(Axis.TOKEN)
            .valueAxis(Axis.CHANNEL)
            .window(128)
            .sinks(5);
    assertEquals(new CodecChoice("uniform", 4, Map.of("axis", 1.0, "group", 32.0, "grid", 0.0)), method.keys(7));
    assertEquals(new CodecChoice("uniform", 3, Map.of("axis", 0.0, "group", 64.0, "grid", 0.0)), method.values(7));
    assertEquals(128, method.window());
    assertEquals(5, method.sinks());
    assertEquals("uniform-k4v3", method.name());
    assertEquals(Uniform.bits(2), Uniform.bits(2).keyBits(4).keyBits(2));
  }

  @Test
  void uniformRefusesOtherWidthsAndNegativeNumbers() {
    for (int bits : new int[] {0, -1, 5, 6, 7, 9, 17, 32, Integer.MAX_VALUE}) {
      assertNames(assertThrows(IllegalArgumentException.class, () -> Uniform.bits(bits)), bits);
      assertThrows(IllegalArgumentException.class, () -> Uniform.bits(2).keyBits(bits));
      assertThrows(IllegalArgumentException.class, () -> Uniform.bits(2).valueBits(bits));
    }
    assertNames(assertThrows(IllegalArgumentException.class, () -> Uniform.bits(2).keyGroup(-1)), "keyGroup", -1);
    assertNames(assertThrows(IllegalArgumentException.class, () -> Uniform.bits(2).valueGroup(-1)), "valueGroup");
    assertNames(assertThrows(IllegalArgumentException.class, () -> Uniform.bits(2).window(-1)), "window");
    assertNames(assertThrows(IllegalArgumentException.class, () -> Uniform.bits(2).sinks(-1)), "sinks");
  }

  @Test
  void halfPrecisionIsTheF16Codec() {
    KvMethod method = new HalfPrecision();
    assertEquals(CodecChoice.of("f16", 16), method.keys(3));
    assertEquals(method.keys(0), method.values(0));
    assertEquals("f16", method.name());
  }

  @Test
  void choicesAreValues() {
    Map<String, Double> options = new HashMap<>(Map.of("group", 32.0));
    CodecChoice choice = new CodecChoice("uniform", 2, options);
    options.put("axis", 1.0);
    assertEquals(CodecChoice.of("uniform", 2).with("group", 32), choice);
    assertThrows(IllegalArgumentException.class, () -> CodecChoice.of("", 2));
    assertThrows(IllegalArgumentException.class, () -> CodecChoice.of("uniform", 0));
  }
}
