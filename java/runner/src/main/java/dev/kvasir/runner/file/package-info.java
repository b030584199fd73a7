/**
 * Files that hold models: GGUF, and folders in the layout of Hugging Face. Everything that a file says is checked before
 * it sizes or addresses anything; what is wrong is said by name in a {@link dev.kvasir.runner.file.ModelException}.
 */
@org.jspecify.annotations.NullMarked
package dev.kvasir.runner.file;
