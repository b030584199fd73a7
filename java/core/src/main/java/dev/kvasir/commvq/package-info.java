/**
 * CommVQ: keys as sums of complex vectors that commute with RoPE, values as sums of a codebook's rows, at 1 or 2 bits.
 *
 * <pre>{@code
 * try (KeyTrainer trainer = KeyTrainer.builder(8, 128).stages(11).build()) {
 *   trainer.add(keysBeforeRope, tokens);
 *   KeyCodebook keys = trainer.train(progress -> log(progress.done()));
 * }
 * CommVqCodebooks codebooks = CommVqCodebooks.builder(geometry).keys(0, keys).build();
 * }</pre>
 *
 * <p>Codebooks and encoders are constant and may be used by any number of threads; the native memory behind them is
 * freed when they are forgotten. Trainers are closed by whoever made them. Arrays of keys and values are {@code
 * [tokens][kvHeads][headDim]}, keys before RoPE.
 */
@NullMarked
package dev.kvasir.commvq;

import org.jspecify.annotations.NullMarked;
