package dev.kvasir.rope;

/** Which two channels of a head RoPE rotates together. */
public enum RopePairs {
  /** Channels j and j + headDim/2 ("rotate half"): Llama, Qwen and Mistral as Hugging Face stores them. */
  HALVES(0),
  /** Channels 2j and 2j + 1 ("interleaved"): GPT-J, and Llama as Meta stores it. */
  NEIGHBOURS(1);

  private final int code;

  RopePairs(int code) {
    this.code = code;
  }

  /**
   * The number that native code and files know it by, for good.
   *
   * @return the code
   */
  public int code() {
    return code;
  }
}
