/** Memory of native code in which blocks wait. */
@NullMarked
package dev.kvasir.internal.memory;

import org.jspecify.annotations.NullMarked;
