package dev.kvasir;

import dev.kvasir.internal.NativeCall;
import dev.kvasir.internal.jni.Native;
import java.util.ArrayList;
import java.util.Collections;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;

/** What the native library says about itself, and its threads. */
final class Catalog {

  private static final int MAX_BITS = 32;

  private Catalog() {}

  static String version() {
    return NativeCall.get(Native::version);
  }

  static List<BackendInfo> backends() {
    return NativeCall.get(
        () -> {
          List<BackendInfo> all = new ArrayList<>();
          for (int i = 0; i < Native.backend_count(); i++) {
            all.add(new BackendInfo(Native.backend_name(i), Native.backend_summary(i), Native.backend_available(i)));
          }
          return List.copyOf(all);
        });
  }

  static List<CodecInfo> codecs() {
    return NativeCall.get(
        () -> {
          List<CodecInfo> all = new ArrayList<>();
          for (int codec = 0; codec < Native.codec_count(); codec++) {
            all.add(
                new CodecInfo(
                    Native.codec_name(codec),
                    Native.codec_summary(codec),
                    sides(codec),
                    bits(codec),
                    options(codec),
                    Native.codec_is_trained(codec)));
          }
          return List.copyOf(all);
        });
  }

  static int threads() {
    return NativeCall.get(Native::threads);
  }

  static void setThreads(int threads) {
    NativeCall.get(
        () -> {
          Native.set_threads(threads);
          return threads;
        });
  }

  private static Set<Side> sides(int codec) {
    Set<Side> sides = EnumSet.noneOf(Side.class);
    for (Side side : Side.values()) {
      if (Native.codec_has_side(codec, side.code())) {
        sides.add(side);
      }
    }
    return Collections.unmodifiableSet(sides);
  }

  private static Set<Integer> bits(int codec) {
    Set<Integer> bits = new TreeSet<>();
    for (int width = 1; width <= MAX_BITS; width++) {
      if (Native.codec_has_bits(codec, width)) {
        bits.add(width);
      }
    }
    return Collections.unmodifiableSet(bits);
  }

  private static List<CodecInfo.Option> options(int codec) {
    List<CodecInfo.Option> options = new ArrayList<>();
    for (int i = 0; i < Native.codec_option_count(codec); i++) {
      options.add(new CodecInfo.Option(Native.codec_option_name(codec, i), Native.codec_option_summary(codec, i)));
    }
    return List.copyOf(options);
  }
}
