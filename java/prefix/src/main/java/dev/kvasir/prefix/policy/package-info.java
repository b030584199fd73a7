/** What a full tier gives up: the same code in tiers and in simulations. */
@NullMarked
package dev.kvasir.prefix.policy;

import org.jspecify.annotations.NullMarked;
