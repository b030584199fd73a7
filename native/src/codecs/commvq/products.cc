#include "codecs/commvq/products.h"

#include <algorithm>

#include "base/aligned.h"
#include "base/thread_pool.h"

namespace kvasir::commvq {
namespace {

constexpr int kRowsPerTask = 32;
constexpr int kPanelColumns = 4 * kCodebookBlock;

int tasks_of(int64_t count, int each) { return static_cast<int>((count + each - 1) / each); }

}  // namespace

void multiply(const CodebookKernels& kernels, const float* a, int64_t rows, const float* b, int columns, int depth,
              const float* bias, float* out) {
  // Columns in panels that stay in the cache while rows pass by: [panels][depth][kPanelColumns], 0 after the last.
  const int panels = tasks_of(columns, kPanelColumns);
  const size_t panel_floats = static_cast<size_t>(depth) * kPanelColumns;
  const AlignedArray<float> packed = make_aligned<float>(panels * panel_floats);
  ThreadPool::current().run(panels, [&](int panel) {
    float* to = packed.get() + panel * panel_floats;
    for (int k = 0; k < depth; ++k) {
      for (int n = panel * kPanelColumns; n < (panel + 1) * kPanelColumns; ++n) {
        *to++ = n < columns ? b[static_cast<size_t>(n) * depth + k] : 0.0f;
      }
    }
  });
  ThreadPool::current().run(tasks_of(rows, kRowsPerTask), [&](int task) {
    const int64_t first = int64_t{task} * kRowsPerTask;
    const int count = static_cast<int>(std::min<int64_t>(kRowsPerTask, rows - first));
    float part[kRowsPerTask * kPanelColumns];
    for (int panel = 0; panel < panels; ++panel) {
      const int begin = panel * kPanelColumns, width = std::min(columns - begin, kPanelColumns);
      kernels.products(a + first * depth, count, depth, depth, packed.get() + panel * panel_floats, kPanelColumns,
                       part);
      for (int r = 0; r < count; ++r) {
        const float* from = part + r * kPanelColumns;
        float* to = out + (first + r) * columns + begin;
        for (int n = 0; n < width; ++n) to[n] = bias != nullptr ? from[n] + bias[begin + n] : from[n];
      }
    }
  });
}

}  // namespace kvasir::commvq
