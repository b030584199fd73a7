/** Programs on top of Kvasir. */
@NullMarked
package dev.kvasir.lab;

import org.jspecify.annotations.NullMarked;
