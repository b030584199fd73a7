package dev.kvasir.lab.sample;

import java.util.List;

/**
 * A text in which pass keys are hidden.
 *
 * @param text what to read
 * @param questions beginnings of sentences, each of which the next key ends
 * @param keys five digits each
 */
public record HiddenKeys(String text, List<String> questions, List<String> keys) {}
