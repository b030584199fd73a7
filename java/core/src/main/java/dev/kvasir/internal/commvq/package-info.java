/** The native objects of CommVQ behind {@link dev.kvasir.commvq}. Not part of the API. */
@NullMarked
package dev.kvasir.internal.commvq;

import org.jspecify.annotations.NullMarked;
