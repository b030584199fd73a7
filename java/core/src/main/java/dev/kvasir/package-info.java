/**
 * Compressed KV caches for large language models, with attention computed on the compressed form.
 *
 * <pre>{@code
 * KvGeometry geometry = KvGeometry.builder().layers(32).queryHeads(32).kvHeads(8).headDim(128).build();
 * try (KvCache cache = KvCache.builder(geometry).method(Uniform.bits(2)).budgetBytes(4L << 30).build();
 *     KvSequence sequence = cache.newSequence()) {
 *   sequence.append(layer, keys, values, tokens); // [tokens][kvHeads][headDim], keys after RoPE
 *   sequence.attend(layer, query, output);        // [queryHeads][headDim]
 * }
 * }</pre>
 *
 * <h2>Shapes</h2>
 *
 * All arrays are dense and row-major; the last index is the channel. Arrays and buffers may be longer than the call
 * needs, never shorter. Data in a buffer starts at its position, which no call changes. Buffers must have the byte
 * order of the machine ({@link java.nio.ByteOrder#nativeOrder()}). Direct buffers are used in place; everything else is
 * copied once.
 *
 * <h2>Errors</h2>
 *
 * A wrong argument is an {@link IllegalArgumentException} that names the offending values, the use of something closed
 * an {@link IllegalStateException}, all else a {@link dev.kvasir.error.KvException}. A call that throws has changed
 * nothing.
 *
 * <h2>Threads</h2>
 *
 * Every method of {@link dev.kvasir.KvCache} and {@link dev.kvasir.KvSequence} may be called from any thread. Calls
 * that change one sequence exclude each other and its readers; attends overlap. Closing something that another thread
 * uses is safe: calls under way finish, later ones throw {@link IllegalStateException}.
 */
@NullMarked
package dev.kvasir;

import org.jspecify.annotations.NullMarked;
