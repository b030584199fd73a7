/** What a model's keys, values and queries are like: recordings of a text, and statistics of their channels. */
@org.jspecify.annotations.NullMarked
package dev.kvasir.lab.inspect;
