package dev.kvasir;

/** Which pages give up bits first where a budget runs out, for methods whose pages can shrink: {@link PmKvq}. */
public enum ShrinkPolicy {
  /**
   * The oldest of the pages with the most bits, and only as many as needed: where layers are alike, an append shrinks at
   * most three pages for each one that it adds.
   */
  OLDEST,
  /** All pages of the layer that needs the room, as in the paper. */
  LAYER
}
