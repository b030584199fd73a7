package dev.kvasir.jlama;

import com.github.tjake.jlama.model.AbstractModel;
import com.github.tjake.jlama.model.CausalSelfAttention;
import com.github.tjake.jlama.model.TransformerBlock;
import com.github.tjake.jlama.tensor.AbstractTensor;
import com.github.tjake.jlama.tensor.FloatBufferTensor;
import com.github.tjake.jlama.tensor.KvBufferCache;
import java.lang.reflect.AccessibleObject;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.FloatBuffer;

/** What Jlama 0.8.4 shows to its own classes only. Nothing final is written. */
final class Hidden {

  private static final Field BLOCKS = field(AbstractModel.class, "transformerBlocks");
  private static final Field BUFFERS = field(AbstractModel.class, "kvBufferCache");
  private static final Field FLOATS = field(FloatBufferTensor.class, "b");
  private static final Method QUANTIZE = method(AbstractModel.class, "maybeQuantize", AbstractTensor.class);

  private Hidden() {}

  static TransformerBlock[] blocks(AbstractModel model) {
    return get(BLOCKS, model);
  }

  static void blocks(AbstractModel model, TransformerBlock[] blocks) {
    set(BLOCKS, model, blocks);
  }

  static KvBufferCache buffers(AbstractModel model) {
    return get(BUFFERS, model);
  }

  static void buffers(AbstractModel model, KvBufferCache buffers) {
    set(BUFFERS, model, buffers);
  }

  /** The tensor in the type that the model's weights want to be multiplied with. To be closed. */
  static AbstractTensor<?, ?> quantized(AbstractModel model, AbstractTensor<?, ?> tensor) {
    try {
      return (AbstractTensor<?, ?>) QUANTIZE.invoke(model, tensor);
    } catch (InvocationTargetException e) {
      if (e.getCause() instanceof RuntimeException cause) {
        throw cause;
      }
      if (e.getCause() instanceof Error cause) {
        throw cause;
      }
      throw new IllegalStateException(e.getCause());
    } catch (IllegalAccessException e) {
      throw new IllegalStateException(e);
    }
  }

  /** The memory of a tensor that is no part of another. */
  static FloatBuffer floats(FloatBufferTensor tensor) {
    return Hidden.<FloatBuffer>get(FLOATS, tensor);
  }

  static <T> T ofBlock(TransformerBlock block, String name) {
    return get(field(TransformerBlock.class, name), block);
  }

  static <T> T ofAttention(CausalSelfAttention attention, String name) {
    return get(field(CausalSelfAttention.class, name), attention);
  }

  /** The model that an object of another library holds. */
  static AbstractModel modelInside(Object holder) {
    for (Class<?> type = holder.getClass(); type != null; type = type.getSuperclass()) {
      for (Field field : type.getDeclaredFields()) {
        if (AbstractModel.class.isAssignableFrom(field.getType())) {
          return get(accessible(field), holder);
        }
      }
    }
    throw new IllegalArgumentException(holder.getClass().getName() + " holds no model of Jlama");
  }

  private static Field field(Class<?> type, String name) {
    try {
      return accessible(type.getDeclaredField(name));
    } catch (NoSuchFieldException e) {
      throw otherVersion(type, name, e);
    }
  }

  private static Method method(Class<?> type, String name, Class<?>... parameters) {
    try {
      return accessible(type.getDeclaredMethod(name, parameters));
    } catch (NoSuchMethodException e) {
      throw otherVersion(type, name, e);
    }
  }

  private static IllegalStateException otherVersion(Class<?> type, String name, Exception cause) {
    return new IllegalStateException(type.getName() + " has no " + name + ": this Jlama is not 0.8.4", cause);
  }

  private static <T extends AccessibleObject> T accessible(T member) {
    member.setAccessible(true);
    return member;
  }

  @SuppressWarnings("unchecked")
  private static <T> T get(Field field, Object object) {
    try {
      return (T) field.get(object);
    } catch (IllegalAccessException e) {
      throw new IllegalStateException(e);
    }
  }

  private static void set(Field field, Object object, Object value) {
    try {
      field.set(object, value);
    } catch (IllegalAccessException e) {
      throw new IllegalStateException(e);
    }
  }
}
