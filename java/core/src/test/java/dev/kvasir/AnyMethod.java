package dev.kvasir;

/** A method that says what a test wants it to say. */
public record AnyMethod(CodecChoice codec, int window, int sinks) implements KvMethod {

  public static final CodecChoice F16 = CodecChoice.of("f16", 16);

  @Override
  public String name() {
    return toString();
  }

  @Override
  public CodecChoice keys(int layer) {
    return codec;
  }

  @Override
  public CodecChoice values(int layer) {
    return codec;
  }
}
