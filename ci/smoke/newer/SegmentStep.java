package example;

import dev.kvasir.AttendBatch;
import dev.kvasir.ElementType;
import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.foreign.Segments;
import dev.kvasir.method.Uniform;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;

/** A step on memory segments, with the published artifacts alone. */
public class SegmentStep {
  public static void main(String[] args) {
    KvGeometry geometry = KvGeometry.builder().layers(1).queryHeads(2).kvHeads(1).headDim(64).build();
    try (Arena arena = Arena.ofShared();
        KvCache cache = KvCache.builder(geometry).method(Uniform.bits(4)).build();
        KvSequence sequence = cache.newSequence()) {
      MemorySegment rows = arena.allocate(200 * 64 * 4L, 64);
      MemorySegment outputs = arena.allocate(2 * 64 * 4L, 64);
      for (int i = 0; i < 200 * 64; i++) {
        rows.setAtIndex(ValueLayout.JAVA_FLOAT, i, 1.5f);
      }
      var floats = Segments.rows(rows, ElementType.FLOAT32);
      cache.append(0, List.of(sequence), new int[] {200}, floats, floats);
      cache.attend(
          new AttendBatch(List.of(sequence)).queries(floats).outputs(Segments.rows(outputs, ElementType.FLOAT32)));
      if (Math.abs(outputs.getAtIndex(ValueLayout.JAVA_FLOAT, 77) - 1.5f) > 1e-3f) {
        throw new AssertionError("an output is " + outputs.getAtIndex(ValueLayout.JAVA_FLOAT, 77));
      }
      System.out.println("SegmentStep: 200 tokens appended and attended to in place");
    }
  }
}
