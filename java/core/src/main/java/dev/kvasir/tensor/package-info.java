/**
 * Tensors and their files: safetensors, read and written with everything checked.
 */
@NullMarked
package dev.kvasir.tensor;

import org.jspecify.annotations.NullMarked;
