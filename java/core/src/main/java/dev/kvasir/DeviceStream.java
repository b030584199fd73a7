package dev.kvasir;

import org.bytedeco.javacpp.Pointer;

/**
 * A stream of a device: work given with it comes after what is on it already, and before what is put on it later.
 *
 * @param handle what CUDA calls {@code cudaStream_t}; 0 is the default stream
 */
public record DeviceStream(long handle) {

  /** The device's default stream. */
  public static final DeviceStream DEFAULT = new DeviceStream(0);

  /**
   * The stream that a pointer of JavaCPP's CUDA presets stands for, a {@code CUstream_st}.
   *
   * @param stream the pointer
   * @return a stream
   */
  public static DeviceStream of(Pointer stream) {
    return new DeviceStream(stream.address());
  }
}
