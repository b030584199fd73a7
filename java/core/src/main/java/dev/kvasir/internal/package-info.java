/** Internals of Kvasir. No part of the public interface: names and behaviour change without notice. */
@NullMarked
package dev.kvasir.internal;

import org.jspecify.annotations.NullMarked;
