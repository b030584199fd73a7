/**
 * What methods know of a model: the bases of Spectral, {@link dev.kvasir.codebook.SpectralBases}, and the codebooks of
 * CommVQ: keys as sums of complex vectors that commute with RoPE, values as sums of a codebook's rows, at
 * 1 or 2 bits.
 *
 * <p>{@link dev.kvasir.codebook.CommVqCodebooks} holds those of a model; {@code dev.kvasir.training} makes them, and a
 * profile or a safetensors file keeps them. Codebooks and encoders are constant and may be used by any number of threads;
 * the native memory behind them is freed when they are forgotten.
 */
@NullMarked
package dev.kvasir.codebook;

import org.jspecify.annotations.NullMarked;
