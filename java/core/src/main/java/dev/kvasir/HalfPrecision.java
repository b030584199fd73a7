package dev.kvasir;

/** No compression: every element in 16 bits (IEEE float16). What the other methods are compared with. */
public record HalfPrecision() implements KvMethod {

  private static final CodecChoice CODEC = CodecChoice.of("f16", 16);

  @Override
  public String name() {
    return "f16";
  }

  @Override
  public CodecChoice keys(int layer) {
    return CODEC;
  }

  @Override
  public CodecChoice values(int layer) {
    return CODEC;
  }
}
