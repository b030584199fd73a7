/**
 * What is learned about a model before a cache is built for it, and the file that keeps it.
 *
 * <p>Calibration starts from tensors that a training framework wrote while the model read sample texts ({@link
 * dev.kvasir.calibrate.CalibrationTensors}, or plain arrays):
 *
 * <pre>{@code
 * KeyScaling scaling = KeyScaling.calibrate(geometry, KeyScaling.Options.defaults(), 128, List.of(tensors));
 * Sensitivities sensitivities = Sensitivities.accumulator(geometry).keyScaling(scaling).add(tensors).result();
 * BitPlan plan = BitAllocator.of(geometry, sensitivities, PageCost.perToken(geometry)).averageBits(2.5).solve();
 * Profile.builder(geometry).keyScaling(scaling).sensitivities(sensitivities).plan(plan).build().save(file);
 * }</pre>
 *
 * <p>Arrays of keys, values, gradients and queries are {@code [tokens][heads][headDim]}, as everywhere in Kvasir. What
 * these classes return is immutable; arrays that they hand out are copies.
 */
@NullMarked
package dev.kvasir.calibrate;

import org.jspecify.annotations.NullMarked;
