/**
 * Recipes that were chosen by measuring, and the training of what they need.
 */
@NullMarked
package dev.kvasir.preset;

import org.jspecify.annotations.NullMarked;
