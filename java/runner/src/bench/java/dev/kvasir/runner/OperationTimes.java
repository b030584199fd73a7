package dev.kvasir.runner;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.Arrays;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.stream.Collectors;

/** A clock around every operation of a {@link Compute} whose operations are done when they return. */
final class OperationTimes {

  /** What one operation has taken so far, of all layers. Products also know what they multiplied. */
  static final class Time {
    long calls;
    long nanos;
    double products;
    double bytes;
  }

  private record Work(String name, double weights, double bytes) {}

  private final Compute compute;
  private final Map<Compute.Matrix, Work> works = new IdentityHashMap<>();
  private final Map<String, Time> times = new LinkedHashMap<>();

  OperationTimes(Compute compute) {
    this.compute = compute;
  }

  /** By the names of operations, in the order in which they first ran. */
  Map<String, Time> times() {
    return times;
  }

  /** The same operations, with the clock around each. */
  Compute timed() {
    return (Compute)
        Proxy.newProxyInstance(
            Compute.class.getClassLoader(), new Class<?>[] {Compute.class}, (proxy, method, arguments) ->
                call(method, arguments));
  }

  private Object call(Method method, Object[] arguments) throws Throwable {
    long start = System.nanoTime();
    Object result;
    try {
      result = method.invoke(compute, arguments);
    } catch (InvocationTargetException e) {
      throw e.getCause();
    }
    long nanos = System.nanoTime() - start;
    switch (method.getName()) {
      case "matrix" -> works.put((Compute.Matrix) result, work((Model.Projection[]) arguments[0]));
      case "project" -> {
        Work work = works.get((Compute.Matrix) arguments[2]);
        Time time = add(work.name(), nanos);
        time.products += (int) arguments[1] * work.weights();
        time.bytes += work.bytes();
      }
      case "run" -> {} // what it runs has times of its own
      default -> {
        if (method.getReturnType() == void.class) { // others hand out memory, or what is in it
          add(method.getName(), nanos);
        }
      }
    }
    return result;
  }

  private Time add(String name, long nanos) {
    Time time = times.computeIfAbsent(name, any -> new Time());
    time.calls++;
    time.nanos += nanos;
    return time;
  }

  private static Work work(Model.Projection[] parts) {
    var weights = Arrays.stream(parts).map(Model.Projection::weights).toList();
    String rows = weights.stream().map(each -> Integer.toString(each.rows())).collect(Collectors.joining("+"));
    String types = weights.stream().map(each -> each.type().name()).distinct().collect(Collectors.joining(", "));
    return new Work(
        "product " + rows + " x " + weights.get(0).width() + " " + types,
        weights.stream().mapToDouble(each -> (double) each.rows() * each.width()).sum(),
        weights.stream().mapToDouble(each -> each.bytes().remaining()).sum());
  }
}
