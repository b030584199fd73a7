/**
 * What goes wrong other than by a wrong argument or the use of something closed. Below all other packages, because every
 * call of native code may throw it.
 */
@NullMarked
package dev.kvasir.error;

import org.jspecify.annotations.NullMarked;
