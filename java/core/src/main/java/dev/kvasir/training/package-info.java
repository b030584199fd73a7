/**
 * Training of codebooks, step by step: whoever calls owns the loop.
 *
 * <pre>{@code
 * try (KeyTrainer trainer = KeyTrainer.builder(8, 128).stages(11).build()) {
 *   trainer.add(keysBeforeRope, tokens);
 *   KeyCodebook keys = trainer.train(progress -> log(progress.done()));
 * }
 * }</pre>
 *
 * <p>Trainers are closed by whoever made them. Arrays of keys and values are {@code [tokens][kvHeads][headDim]}, keys before
 * RoPE.
 */
@NullMarked
package dev.kvasir.training;

import org.jspecify.annotations.NullMarked;
