/** A door for engines that know arrays of numbers and nothing of this library: {@link dev.kvasir.engine.KvEngineAdapter}. */
@NullMarked
package dev.kvasir.engine;

import org.jspecify.annotations.NullMarked;
