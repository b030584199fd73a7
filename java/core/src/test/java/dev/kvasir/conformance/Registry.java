package dev.kvasir.conformance;

import dev.kvasir.BackendInfo;
import dev.kvasir.CodecChoice;
import dev.kvasir.CodecInfo;
import dev.kvasir.KvMethod;
import dev.kvasir.Kvasir;
import dev.kvasir.Precision;
import dev.kvasir.Side;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** What the library offers, as things to test. */
final class Registry {

  static final int[] HEAD_DIMS = {32, 48, 64, 80, 128, 256};
  static final int[] GQA_RATIOS = {1, 2, 4, 7};
  static final int[] LENGTHS = {1, 127, 128, 129, 1000};

  /** What a precision promises: see {@link Precision}. */
  static double nmse(Precision precision) {
    return precision == Precision.EXACT ? 1e-6 : 1e-4;
  }

  /** For a side that a codec does not store. */
  static final CodecChoice STAND_IN = CodecChoice.of("uniform", 2).with("group", 32);

  private Registry() {}

  /** A codec at one of its widths. */
  record Width(String codec, int bits) {
    ReferenceCodec reference() {
      return ReferenceCodecs.of(codec);
    }

    /** Of the codec that stores a side: where this one does not, uniform takes its place. */
    ReferenceCodec reference(Side side) {
      return stores(side) ? reference() : ReferenceCodecs.of(STAND_IN.codec());
    }

    /** Whether the codec stores a side. */
    boolean stores(Side side) {
      return Kvasir.codecs().stream().anyMatch(info -> info.name().equals(codec) && info.sides().contains(side));
    }

    /** Every option setting at a head dim, of keys and values side by side. */
    List<Method> methods(int headDim) {
      List<CodecChoice> keys = choices(Side.KEYS, headDim);
      List<CodecChoice> values = choices(Side.VALUES, headDim);
      List<Method> methods = new ArrayList<>();
      for (int i = 0; i < Math.max(keys.size(), values.size()); i++) {
        methods.add(new Method(keys.get(i % keys.size()), values.get(i % values.size()), 0, 0));
      }
      return methods;
    }

    private List<CodecChoice> choices(Side side, int headDim) {
      if (!stores(side)) {
        return List.of(STAND_IN);
      }
      return reference().variants(side, headDim).stream()
          .map(options -> new CodecChoice(codec, bits, options))
          .collect(Collectors.toList());
    }

    @Override
    public String toString() {
      return codec + " " + bits + " bits";
    }
  }

  /** A method with one choice for the keys and one for the values of all layers. */
  record Method(CodecChoice keys, CodecChoice values, int window, int sinks) implements KvMethod {
    @Override
    public String name() {
      return "test";
    }

    @Override
    public CodecChoice keys(int layer) {
      return keys;
    }

    @Override
    public CodecChoice values(int layer) {
      return values;
    }

    CodecChoice of(Side side) {
      return side == Side.KEYS ? keys : values;
    }
  }

  /** Every codec at every width, but for those that go by what a layer is given, which have tests of their own. */
  static List<Width> widths() {
    List<Width> widths = new ArrayList<>();
    for (CodecInfo codec : plain()) {
      for (int bits : codec.bits()) {
        widths.add(new Width(codec.name(), bits));
      }
    }
    return widths;
  }

  /** {@link CommVqConformanceTest} and {@link SpectralConformanceTest} are for the others. */
  static List<CodecInfo> plain() {
    return Kvasir.codecs().stream()
        .filter(codec -> !codec.trained() && !codec.name().equals("spectral"))
        .collect(Collectors.toList());
  }

  /** The backends that this machine can run, best first; or the one that the tests were told to run on. */
  static List<String> backends() {
    String wanted = System.getProperty("kvasir.test.backend");
    if (wanted != null) {
      return List.of(wanted);
    }
    return Kvasir.backends().stream()
        .filter(BackendInfo::available)
        .map(BackendInfo::name)
        .collect(Collectors.toList());
  }
}
