/** Memory segments as rows: {@link dev.kvasir.foreign.Segments}. */
@NullMarked
package dev.kvasir.foreign;

import org.jspecify.annotations.NullMarked;
