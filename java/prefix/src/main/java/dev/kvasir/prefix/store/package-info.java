/** Where blocks are kept: {@link dev.kvasir.prefix.store.BlockStore}, in memory, in a folder, or wherever one is written for. */
@NullMarked
package dev.kvasir.prefix.store;

import org.jspecify.annotations.NullMarked;
