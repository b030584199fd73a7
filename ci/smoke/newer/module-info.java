/** A user's module with memory segments. Jlama itself, and so what belongs to it, is for the class path alone. */
module newer {
  requires dev.kvasir.foreign;
}
