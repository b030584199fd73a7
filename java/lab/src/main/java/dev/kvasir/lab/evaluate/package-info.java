/**
 * What a compressed cache costs a model: text, tasks, memory and time of every method side by side. {@link
 * dev.kvasir.lab.evaluate.Evaluation} runs it, {@link dev.kvasir.lab.evaluate.Methods} lists what takes part.
 */
@org.jspecify.annotations.NullMarked
package dev.kvasir.lab.evaluate;
