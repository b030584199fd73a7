package dev.kvasir.prefix.simulate;

/** Blocks of a text that come and go together, one or more, under a name that goes by all before them. */
record Run(long name, int blocks) {

  /** Of a piece of a text. */
  static int blocks(Run[] text, int from, int to) {
    int sum = 0;
    for (int i = from; i < to; i++) {
      sum += text[i].blocks;
    }
    return sum;
  }
}
