/** Texts and tokens: vocabularies of byte-level BPE and SentencePiece, and the templates of conversations. */
@org.jspecify.annotations.NullMarked
package dev.kvasir.runner.text;
