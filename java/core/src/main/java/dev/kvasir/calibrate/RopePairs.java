package dev.kvasir.calibrate;

/** Which two channels of a head RoPE rotates together. */
public enum RopePairs {
  /** Channels j and j + headDim/2 ("rotate half"): Llama, Qwen and Mistral as Hugging Face stores them. */
  HALVES,
  /** Channels 2j and 2j + 1 ("interleaved"): GPT-J, and Llama as Meta stores it. */
  NEIGHBOURS
}
