package dev.kvasir.presets;

import org.bytedeco.javacpp.annotation.Platform;
import org.bytedeco.javacpp.annotation.Properties;
import org.bytedeco.javacpp.tools.Info;
import org.bytedeco.javacpp.tools.InfoMap;
import org.bytedeco.javacpp.tools.InfoMapper;

/**
 * How JavaCPP reads the public C++ headers. Lower case, as JavaCPP names its presets after the library.
 *
 * <p>Classes are made and freed by their static {@code create} and {@code destroy} alone: no generated class has an
 * allocating constructor, so JavaCPP owns no native memory and its limits on physical memory never apply.
 */
@Properties(
    target = "dev.kvasir.internal.jni",
    global = "dev.kvasir.internal.jni.Native",
    value =
        @Platform(
            library = "jnikvasir",
            include = {
              "kvasir/error.h",
              "kvasir/types.h",
              "kvasir/rope.h",
              "kvasir/commvq.h",
              "kvasir/commvq_training.h",
              "kvasir/config.h",
              "kvasir/attend.h",
              "kvasir/cache.h",
              "kvasir/estimate.h",
              "kvasir/saving.h",
              "kvasir/calibrate.h",
              "kvasir/codec.h",
              "kvasir/backend.h",
              "kvasir/held_call.h",
              "kvasir/kmeans.h",
              "kvasir/matrix.h",
              "kvasir/model.h",
              "kvasir/device_model.h"
            }))
public class kvasir implements InfoMapper {
  @Override
  public void map(InfoMap infoMap) {
    infoMap
        // Addresses only. For arrays and buffers, too, JavaCPP would make functions that pin or copy arrays by JNI, and
        // those take a copy that the JVM has no memory for as given, and give back what they never had.
        .put(new Info("float").valueTypes("float").pointerTypes("FloatPointer"))
        .put(new Info("double").valueTypes("double").pointerTypes("DoublePointer"))
        .put(new Info("int").valueTypes("int").pointerTypes("IntPointer"))
        .put(new Info("int64_t").cast().valueTypes("long").pointerTypes("LongPointer"))
        .put(new Info("uint64_t").cast().valueTypes("long").pointerTypes("LongPointer"))
        .put(new Info("uint16_t").cast().valueTypes("short").pointerTypes("ShortPointer"))
        .put(new Info("uint8_t").cast().valueTypes("byte").pointerTypes("BytePointer"))
        // Names and summaries are short and ASCII: a String is all that Java wants of them.
        .put(new Info("const char").pointerTypes("@Cast(\"const char*\") String"))
        // Arrives as a RuntimeException whose message is what(): "<error name>: <text>".
        .put(new Info("kvasir::Error").skip())
        // What a class is made of stays in C++.
        .put(new Info("kvasir::Cache::Impl", "kvasir::CacheConfig::Impl", "kvasir::CacheStats::Impl").skip())
        .put(new Info("kvasir::CacheEstimate::Impl").skip())
        .put(new Info("kvasir::CacheConfig::impl").skip())
        .put(new Info("kvasir::Saving::Impl", "kvasir::Restoring::Impl").skip())
        .put(new Info("kvasir::KeyCodebook::Impl", "kvasir::KeyTrainer::Impl", "kvasir::ValueCodebook::Impl").skip())
        .put(new Info("kvasir::ValueFitter::Impl", "kvasir::ValueEncoder::Impl", "kvasir::ValueTrainer::Impl").skip())
        .put(new Info("kvasir::KeyCodebook::impl", "kvasir::ValueCodebook::impl", "kvasir::ValueEncoder::impl").skip())
        // Its one constructor takes what was skipped; without this JavaCPP would invent a default one.
        .put(new Info("kvasir::CacheStats", "kvasir::CacheEstimate").purify())
        .put(new Info("kvasir::Saving", "kvasir::Restoring", "kvasir::ImageMemory").purify())
        // Views over memory of NativeMemory: no constructor, so that JavaCPP allocates none.
        .put(new Info("kvasir::RowsView", "kvasir::MutableRowsView", "kvasir::AttendBatch").purify());
  }
}
