/**
 * Programs that mean harm, and programs that never end: fuzzing against a plain model of the state, and a soak that
 * watches memory, latency and correctness.
 */
@NullMarked
package dev.kvasir.stress;

import org.jspecify.annotations.NullMarked;
