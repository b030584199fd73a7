package dev.kvasir.training;

/**
 * Where a training stands.
 *
 * @param done the share of the work that is done, 0..1
 * @param error the mean squared error per element so far, in the units of the trainer; infinite while unknown
 */
public record TrainingProgress(double done, double error) {}
