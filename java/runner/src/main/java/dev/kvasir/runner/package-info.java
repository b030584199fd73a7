/**
 * Real models on the library. {@link dev.kvasir.runner.Model} reads one, {@link dev.kvasir.runner.Engine} serves
 * conversations, {@link dev.kvasir.runner.Session}s, side by side; every attention goes through a {@link
 * dev.kvasir.KvCache}. {@link dev.kvasir.runner.Decoder} is what lies below, for those who measure.
 */
@org.jspecify.annotations.NullMarked
package dev.kvasir.runner;
