package dev.kvasir.prefix;

import dev.kvasir.file.ChainHash;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.jspecify.annotations.Nullable;

/** Loads under way, so that many requests for one prefix load it once. */
final class Flights {

  /** A load, and in the end how many blocks it brought. */
  static final class Flight {
    final CompletableFuture<Integer> blocks = new CompletableFuture<>();
    private final List<ChainHash> names;

    private Flight(List<ChainHash> names) {
      this.names = names;
    }
  }

  private final Map<ChainHash, Flight> byName = new HashMap<>();

  /** The load that brings the first of these blocks, if there is one; else a new one that brings all of them. */
  synchronized @Nullable Flight join(ChainHash first) {
    return byName.get(first);
  }

  /** Begins a load, unless another one has been begun for the first of these. */
  synchronized @Nullable Flight begin(List<ChainHash> names) {
    if (byName.containsKey(names.get(0))) {
      return null;
    }
    Flight flight = new Flight(names);
    names.forEach(name -> byName.putIfAbsent(name, flight));
    return flight;
  }

  /** Ends it: so many blocks are in the pool now. */
  void end(Flight flight, int blocks) {
    synchronized (this) {
      flight.names.forEach(name -> byName.remove(name, flight));
    }
    flight.blocks.complete(blocks);
  }
}
