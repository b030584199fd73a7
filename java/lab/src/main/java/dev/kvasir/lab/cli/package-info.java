/** The command line: {@link dev.kvasir.lab.cli.Main}, one class a command. */
@org.jspecify.annotations.NullMarked
package dev.kvasir.lab.cli;
