/**
 * Compressed KV caches for large language models, with attention computed on the compressed form.
 *
 * <p>The natives are resources of modules of their own, {@code dev.kvasir.linux.x86_64} and the like, which nothing
 * requires by name: start with {@code --add-modules ALL-MODULE-PATH}, or require the one for the platform.
 */
@SuppressWarnings("module") // The runner, the lab and the adapter of segments are built after this.
module dev.kvasir {
  requires transitive org.bytedeco.javacpp;
  requires jdk.jfr;
  requires ojalgo;
  requires static org.jspecify;

  exports dev.kvasir;
  exports dev.kvasir.calibrate;
  exports dev.kvasir.codebook;
  exports dev.kvasir.engine;
  exports dev.kvasir.error;
  exports dev.kvasir.file;
  exports dev.kvasir.method;
  exports dev.kvasir.preset;
  exports dev.kvasir.rope;
  exports dev.kvasir.tensor;
  exports dev.kvasir.training;

  exports dev.kvasir.internal.foreign to dev.kvasir.foreign;
  exports dev.kvasir.internal.json to dev.kvasir.lab, dev.kvasir.runner;
  exports dev.kvasir.internal.model to dev.kvasir.lab, dev.kvasir.runner;
}
