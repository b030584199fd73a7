package dev.kvasir;

/** What the elements of one quantisation group have in common. */
public enum Axis {
  /** A group is one channel over consecutive tokens: right for keys, whose outliers stay in few channels. */
  CHANNEL,
  /** A group is one token over consecutive channels: right for values. */
  TOKEN
}
