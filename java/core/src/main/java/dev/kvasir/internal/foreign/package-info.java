/** What the adapter of memory segments needs of the native library. */
@NullMarked
package dev.kvasir.internal.foreign;

import org.jspecify.annotations.NullMarked;
