/** The demo: one model with the caches of all methods side by side. */
@org.jspecify.annotations.NullMarked
package dev.kvasir.lab.demo;
