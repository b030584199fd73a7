package dev.kvasir.codebook;

/**
 * A codebook and the encoder that was trained with it.
 *
 * @param encoder the encoder
 * @param codebook the codebook
 */
public record TrainedValues(ValueEncoder encoder, ValueCodebook codebook) {}
