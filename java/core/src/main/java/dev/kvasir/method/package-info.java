/**
 * The methods: what {@link dev.kvasir.KvCache.Builder#method} takes.
 *
 * <pre>{@code
 * KvMethod method = Uniform.bits(2).keyBits(4).sinks(4);
 * }</pre>
 *
 * <p>A method is a record: a value that is compared, printed and kept in tables. Factories name what matters most, and
 * each option is changed by a method of its name, which returns a changed copy and leaves checking to the record's
 * constructor. Builders are for what owns memory or has many parts that must be given: caches, geometries, trainers.
 */
@NullMarked
package dev.kvasir.method;

import org.jspecify.annotations.NullMarked;
