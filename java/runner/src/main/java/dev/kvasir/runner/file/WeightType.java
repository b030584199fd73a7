package dev.kvasir.runner.file;

import java.util.Arrays;
import java.util.Optional;
import java.util.stream.Collectors;

/** How weights lie in a file and in memory: by the names and numbers of GGUF. */
public enum WeightType {
  /** IEEE float32. */
  F32(0, 1, 4),
  /** IEEE float16. */
  F16(1, 1, 2),
  /** bfloat16. */
  BF16(30, 1, 2),
  /** 4 bits, a scale for 32. */
  Q4_0(2, 32, 18),
  /** 4 bits, a scale and a minimum for 32. */
  Q4_1(3, 32, 20),
  /** 5 bits, a scale for 32. */
  Q5_0(6, 32, 22),
  /** 5 bits, a scale and a minimum for 32. */
  Q5_1(7, 32, 24),
  /** 8 bits, a scale for 32. */
  Q8_0(8, 32, 34),
  /** 2 bits, scales and minimums of 4 bits for 16. */
  Q2_K(10, 256, 84),
  /** 3 bits, scales of 6 bits for 16. */
  Q3_K(11, 256, 110),
  /** 4 bits, scales and minimums of 6 bits for 32. */
  Q4_K(12, 256, 144),
  /** 5 bits, scales and minimums of 6 bits for 32. */
  Q5_K(13, 256, 176),
  /** 6 bits, scales of 8 bits for 16. */
  Q6_K(14, 256, 210),
  /** Points of a lattice for 8 weights, signs, scales of 4 bits for 32. */
  IQ2_XXS(16, 256, 66),
  /** Sixteen uneven values, a scale for 32. */
  IQ4_NL(20, 32, 18),
  /** Sixteen uneven values, scales of 6 bits for 32. */
  IQ4_XS(23, 256, 136);

  /** What GGUF calls its numbers, the gaps among those above included. */
  private static final String[] NAMES = {
    "F32", "F16", "Q4_0", "Q4_1", "Q4_2", "Q4_3", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
    "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32",
    "I64", "F64", "IQ1_M", "BF16", "Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8", "TQ1_0", "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8",
    "IQ4_NL_8_8", "MXFP4"
  };

  private final int code;
  private final int blockWeights;
  private final int blockBytes;

  WeightType(int code, int blockWeights, int blockBytes) {
    this.code = code;
    this.blockWeights = blockWeights;
    this.blockBytes = blockBytes;
  }

  /** Its number in GGUF files and in native code. */
  public int code() {
    return code;
  }

  /** Weights of a block: rows are whole blocks. */
  public int blockWeights() {
    return blockWeights;
  }

  /** Bytes of a block. */
  public int blockBytes() {
    return blockBytes;
  }

  /** The type with a number, if it is one of these. */
  public static Optional<WeightType> of(int code) {
    return Arrays.stream(values()).filter(type -> type.code == code).findFirst();
  }

  /** What GGUF calls a number. */
  static String nameOf(int code) {
    return code >= 0 && code < NAMES.length ? NAMES[code] : "number " + Integer.toUnsignedString(code);
  }

  /** All names, for messages. */
  static String names() {
    return Arrays.stream(values()).map(Enum::name).collect(Collectors.joining(", "));
  }
}
