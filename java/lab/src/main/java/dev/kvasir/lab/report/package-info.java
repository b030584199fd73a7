/** Evaluations as files: JSON and CSV for programs, HTML with pictures for people. */
@org.jspecify.annotations.NullMarked
package dev.kvasir.lab.report;
