/**
 * Sequences in files, and blocks of them in stores.
 *
 * <pre>{@code
 * sequence.save(path);                            // whole, or not at all
 * KvSequence again = cache.restore(path);         // exactly what was saved, or a KvFileException
 * FileInfo info = KvFile.verify(path);            // without a cache
 * }</pre>
 *
 * <p>What a file belongs to is part of it: the shape of the cache, how it compresses, the content of codebooks, and the
 * model, if the cache was told of it ({@link dev.kvasir.file.ModelFingerprint}). {@code docs/format.md} describes the bytes.
 */
@NullMarked
package dev.kvasir.file;

import org.jspecify.annotations.NullMarked;
