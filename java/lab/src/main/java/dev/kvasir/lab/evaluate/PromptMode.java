package dev.kvasir.lab.evaluate;

/** How the prompts of tasks, and what comes before the part of a text that is scored, get into a cache. */
public enum PromptMode {
  /** Token by token, every token seeing what the compressed cache holds then: the hardest way. */
  STREAM,
  /**
   * The prompt attends in 16 bits and is appended in one piece, as engines do that compress after the prefill; from its
   * last token on, decoding goes on with the compressed cache.
   */
  EXACT
}
