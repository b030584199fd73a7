// The one native method that is written by hand: dev.kvasir.internal.MemoryView.
#include <jni.h>

// Null, with an exception to be thrown, where Java has no room for the buffer.
extern "C" JNIEXPORT jobject JNICALL Java_dev_kvasir_internal_MemoryView_buffer(JNIEnv* env, jclass, jlong address,
                                                                                jlong bytes) {
  return env->NewDirectByteBuffer(reinterpret_cast<void*>(address), bytes);
}
