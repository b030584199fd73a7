package dev.kvasir.method;

import dev.kvasir.KvMethod;

/** No compression: every element in 16 bits (IEEE float16). What the other methods are compared with. */
public record HalfPrecision() implements KvMethod {

  @Override
  public String name() {
    return "f16";
  }
}
