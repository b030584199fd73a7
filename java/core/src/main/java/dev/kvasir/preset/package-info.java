/**
 * Recipes that were chosen by measuring.
 */
@NullMarked
package dev.kvasir.preset;

import org.jspecify.annotations.NullMarked;
