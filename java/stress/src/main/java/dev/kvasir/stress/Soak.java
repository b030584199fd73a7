package dev.kvasir.stress;

import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/**
 * {@code Soak MINUTES [SEED]}: a server for every method at once, turns of a hundred sessions from several threads, and a line of memory and
 * latencies every twelfth of the time. Ends well where results stayed right and memory stayed flat.
 */
public final class Soak {

  private static final int THREADS = 4;
  private static final long BUDGET = 8L << 20;
  /** How much more memory the end may show than the first third: noise of allocators and of the JVM's compilers. */
  private static final long NOISE = 32L << 20;

  private Soak() {}

  /**
   * Runs; ends with "N passed, N failed", and 1 where something failed.
   *
   * @param args minutes, which may be a fraction, and a seed to repeat
   */
  public static void main(String[] args) throws Exception {
    double minutes = args.length > 0 ? Double.parseDouble(args[0]) : 10;
    long seed = args.length > 1 ? Long.parseLong(args[1]) : System.nanoTime() & 0xFFFFFFFFL;
    System.out.println("seed " + seed);
    int failed = 0;
    try {
      run((long) (minutes * 60e9), new Random(seed));
    } catch (Violation e) {
      e.printStackTrace(System.out);
      System.out.println("FAILED  seed " + seed + ": " + e.getMessage());
      failed = 1;
    }
    System.out.println(1 - failed + " passed, " + failed + " failed");
    System.exit(failed);
  }

  private static void run(long nanos, Random random) throws Exception {
    KvGeometry geometry = KvGeometry.builder().layers(2).queryHeads(8).kvHeads(2).headDim(64).build();
    List<Service> services = new ArrayList<>();
    for (KvMethod method : Recipes.all(geometry, random)) {
      services.add(new Service(geometry, method, BUDGET, random));
    }
    long end = System.nanoTime() + nanos;
    ExecutorService pool = Executors.newFixedThreadPool(THREADS);
    List<Future<?>> threads = new ArrayList<>();
    for (int i = 0; i < THREADS; i++) {
      Random own = new Random(random.nextLong());
      threads.add(
          pool.submit(
              () -> {
                while (System.nanoTime() < end) {
                  services.get(own.nextInt(services.size())).serve(own);
                }
              }));
    }
    List<Long> resident = watch(services, threads, nanos);
    for (Future<?> thread : threads) {
      finish(thread);
    }
    pool.shutdown();
    for (Service service : services) {
      System.out.printf(
          "%-28s %7d requests, %6d turned away, %5d checked; append p50 %7.1f p99 %7.1f µs, attend p50 %7.1f p99 %7.1f"
              + " p99.9 %7.1f µs%n",
          service.name, service.requests.get(), service.turnedAway.get(), service.checks.get(),
          service.appends.micros(0.5), service.appends.micros(0.99), service.attends.micros(0.5),
          service.attends.micros(0.99), service.attends.micros(0.999));
      Violation.unless(service.checks.get() > 0 || nanos < 60e9, service.name + " was never checked");
      service.close();
    }
    judge(resident);
  }

  private static List<Long> watch(List<Service> services, List<Future<?>> threads, long nanos) throws Exception {
    List<Long> resident = new ArrayList<>();
    long start = System.nanoTime();
    for (int line = 1; line <= 12; line++) {
      while (System.nanoTime() < start + nanos * line / 12) {
        TimeUnit.MILLISECONDS.sleep(200);
        for (Future<?> thread : threads) {
          if (thread.isDone()) {
            finish(thread);
          }
        }
      }
      resident.add(ProcessMemory.resident());
      long bytes = services.stream().mapToLong(Service::bytes).sum();
      long requests = services.stream().mapToLong(service -> service.requests.get()).sum();
      System.out.printf(
          "%6.1f min: %8d requests, resident %5d MiB, heap %4d MiB, caches %4d MiB%n",
          (System.nanoTime() - start) / 60e9, requests, resident.get(line - 1) >> 20, ProcessMemory.heap() >> 20,
          bytes >> 20);
    }
    return resident;
  }

  private static void finish(Future<?> thread) throws InterruptedException {
    try {
      thread.get();
    } catch (ExecutionException e) {
      throw new Violation("a request failed: " + e.getCause(), e.getCause());
    }
  }

  private static void judge(List<Long> resident) throws IOException {
    long early = Math.max(resident.get(2), resident.get(3));
    long late = Math.min(resident.get(10), resident.get(11));
    System.out.printf("resident after a third %d MiB, at the end %d MiB%n", early >> 20, late >> 20);
    Violation.unless(late <= early + NOISE, "memory grows");
  }
}
