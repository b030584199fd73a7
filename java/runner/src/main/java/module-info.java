/**
 * Runs language models on compressed caches. {@code dev.kvasir.runner} is what programs use; {@code .file} and {@code
 * .text} are files of models, and tokens.
 */
@SuppressWarnings("module") // The lab is built after this.
module dev.kvasir.runner {
  requires transitive dev.kvasir;
  requires transitive dev.kvasir.prefix;
  requires static org.bytedeco.cuda; // for models on a GPU
  requires static org.jspecify;

  exports dev.kvasir.runner;
  exports dev.kvasir.runner.file;
  exports dev.kvasir.runner.text;
}
