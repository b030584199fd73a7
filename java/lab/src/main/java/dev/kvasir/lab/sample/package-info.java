/** What models are tested on: windows of texts, tasks, pass keys. */
@org.jspecify.annotations.NullMarked
package dev.kvasir.lab.sample;
