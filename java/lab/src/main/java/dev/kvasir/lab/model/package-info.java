/**
 * A decoder-only transformer that runs on the library: matrix products in the native core, every attention through a
 * {@link dev.kvasir.KvCache}. {@link dev.kvasir.lab.model.Model} is the entry.
 */
@org.jspecify.annotations.NullMarked
package dev.kvasir.lab.model;
