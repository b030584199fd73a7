/**
 * Caches for models of <a href="https://github.com/tjake/Jlama">Jlama</a>.
 *
 * <p>{@link dev.kvasir.jlama.JlamaCache#attach} gives a model that has been loaded a compressed cache: attention is computed
 * on it, and sessions survive between calls.
 */
@NullMarked
package dev.kvasir.jlama;

import org.jspecify.annotations.NullMarked;
