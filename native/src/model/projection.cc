// Products with weights, and single rows of them.
#include <algorithm>
#include <string>

#include "base/checked.h"
#include "base/checks.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "kvasir/model.h"

namespace kvasir {

int64_t weight_row_bytes(WeightType type, int64_t inputs) { return checked_row_bytes(type, inputs); }

void project(const float* in, const uint8_t* weights, WeightType type, const float* bias, int64_t tokens,
             int64_t outputs, int64_t inputs, float* out) {
  run_product(in, weights, type, bias, tokens, outputs, inputs, true, out);
}

void embed(const int* ids, int64_t tokens, const uint8_t* weights, WeightType type, int64_t rows, int64_t width,
           float* out) {
  require_positive("tokens", tokens);
  require_positive("rows", rows);
  require_positive("width", width);
  require_pointer("ids", ids);
  require_pointer("weights", weights);
  require_pointer("out", out);
  const int64_t row_bytes = checked_row_bytes(type, width);
  checked_multiply(rows, row_bytes, "bytes of weights");
  checked_multiply(checked_multiply(tokens, width, "elements"), sizeof *out, "bytes");
  for (int64_t t = 0; t < tokens; ++t) require_range("an id", ids[t], 0, rows - 1);
  const MatrixKernels& kernels = resolve_matrix(backend_index("auto"));
  constexpr int64_t kPart = 1024;                                             // whole blocks of every type
  const int64_t together = std::max<int64_t>(1, (int64_t{1} << 15) / width);  // rows worth handing to another thread
  const int64_t parts = (tokens - 1) / together + 1;
  if (parts > INT32_MAX) refuse("an operation on " + std::to_string(parts) + " parts");
  ThreadPool::shared().run(static_cast<int>(parts), [&](int p) {
    for (int64_t t = p * together; t < std::min(tokens, (p + 1) * together); ++t) {
      for (int64_t begin = 0; begin < width; begin += kPart) {
        const int count = static_cast<int>(std::min(kPart, width - begin));
        kernels.widen(type, weights + ids[t] * row_bytes, begin, count, out + t * width + begin);
      }
    }
  });
}

}  // namespace kvasir
