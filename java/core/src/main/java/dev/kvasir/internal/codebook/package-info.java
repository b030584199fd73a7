/** The native objects behind {@link dev.kvasir.codebook} and {@link dev.kvasir.training}. Not part of the API. */
@NullMarked
package dev.kvasir.internal.codebook;

import org.jspecify.annotations.NullMarked;
