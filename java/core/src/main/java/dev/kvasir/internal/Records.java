package dev.kvasir.internal;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.RecordComponent;

/** The one way in which records of options are changed. */
public final class Records {

  private Records() {}

  /** A copy with another value for one component, made and checked by the canonical constructor. */
  @SuppressWarnings("unchecked")
  public static <R extends Record> R with(R record, String name, Object value) {
    RecordComponent[] components = record.getClass().getRecordComponents();
    Class<?>[] types = new Class<?>[components.length];
    Object[] values = new Object[components.length];
    boolean found = false;
    try {
      for (int i = 0; i < components.length; i++) {
        boolean wanted = components[i].getName().equals(name);
        types[i] = components[i].getType();
        values[i] = wanted ? value : components[i].getAccessor().invoke(record);
        found |= wanted;
      }
      if (!found) {
        throw new AssertionError(record.getClass() + " has no component " + name);
      }
      return (R) record.getClass().getDeclaredConstructor(types).newInstance(values);
    } catch (InvocationTargetException e) {
      if (e.getCause() instanceof RuntimeException refusal) {
        throw refusal;
      }
      throw new AssertionError(e);
    } catch (ReflectiveOperationException e) {
      throw new AssertionError(e);
    }
  }
}
