/** How saved sequences lie in files. */
@NullMarked
package dev.kvasir.internal.file;

import org.jspecify.annotations.NullMarked;
