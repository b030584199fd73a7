/** Jlama with its own cache beside Jlama with a compressed one: what ci/test-jlama runs. */
package dev.kvasir.jlama.trial;
