/**
 * What a compressed cache costs a model: text, tasks, memory and time of every method side by side. {@link
 * dev.kvasir.lab.evaluate.Evaluate} is the program, {@link dev.kvasir.lab.evaluate.Methods} the list of what takes part.
 */
@org.jspecify.annotations.NullMarked
package dev.kvasir.lab.evaluate;
