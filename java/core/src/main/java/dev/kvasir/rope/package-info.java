/**
 * Rotary position embeddings: which channels turn together, and how fast.
 */
@NullMarked
package dev.kvasir.rope;

import org.jspecify.annotations.NullMarked;
