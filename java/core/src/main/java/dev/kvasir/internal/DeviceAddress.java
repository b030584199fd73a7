package dev.kvasir.internal;

import org.bytedeco.javacpp.Pointer;

/** An address of somebody else's memory, in the form in which native calls take it. Owns nothing. */
public final class DeviceAddress extends Pointer {

  public DeviceAddress(long address) {
    super((Pointer) null);
    this.address = address;
  }
}
