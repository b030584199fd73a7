package dev.kvasir.lab.evaluate;

/**
 * How well one window of text was predicted.
 *
 * @param set the text
 * @param tokens scored tokens
 * @param bits information needed for them
 * @param bytes bytes that these tokens stand for
 * @param farBits the same beyond token 512
 * @param farBytes the same beyond token 512
 * @param divergence sum of the Kullback-Leibler divergences, in nats, of the predictions from those of the 16-bit cache
 * @param agreements predictions whose likeliest token is that of the 16-bit cache
 * @param compared predictions that were compared with the 16-bit cache
 */
public record TextScore(
    String set,
    double tokens,
    double bits,
    double bytes,
    double farBits,
    double farBytes,
    double divergence,
    double agreements,
    double compared) {}
