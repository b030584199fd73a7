// The small steps between products. They read and write every element once, so memory sets their pace and plain loops
// are enough; long inputs are spread over the threads by rows.
#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "base/checks.h"
#include "base/rope.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "kvasir/model.h"

namespace kvasir {
namespace {

// Elements worth handing to another thread.
constexpr int64_t kPartElements = 1 << 15;

// Calls work(begin, end) for parts of `rows` rows of `width` elements, the same parts whatever the threads.
template <class Work>
void in_parts(int64_t rows, int64_t width, const Work& work) {
  const int64_t part = std::max<int64_t>(1, kPartElements / width);
  const int64_t parts = (rows - 1) / part + 1;
  if (parts > INT32_MAX) refuse("an operation on " + std::to_string(parts) + " parts");
  ThreadPool::shared().run(static_cast<int>(parts), [&](int p) {
    const int64_t begin = p * part;
    work(begin, std::min(rows, begin + part));
  });
}

void check_elements(int64_t rows, int64_t width) {
  require_positive("rows", rows);
  require_positive("width", width);
  checked_multiply(checked_multiply(rows, width, "elements"), sizeof(float), "bytes");
}

// In double, over four sums that do not wait for each other.
double sum_of_squares(const float* row, int64_t width) {
  double sums[4] = {};
  int64_t i = 0;
  for (; i + 4 <= width; i += 4) {
    for (int j = 0; j < 4; ++j) sums[j] += static_cast<double>(row[i + j]) * row[i + j];
  }
  for (; i < width; ++i) sums[0] += static_cast<double>(row[i]) * row[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

}  // namespace

void rms_norm(const float* in, const float* weight, double epsilon, int64_t rows, int64_t width, float* out) {
  check_elements(rows, width);
  require_pointer("in", in);
  require_pointer("weight", weight);
  require_pointer("out", out);
  if (!(epsilon >= 0) || std::isinf(epsilon)) refuse("epsilon is " + float_text(epsilon));
  in_parts(rows, width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* from = in + r * width;
      float* to = out + r * width;
      const float scale = static_cast<float>(1.0 / std::sqrt(sum_of_squares(from, width) / width + epsilon));
      for (int64_t i = 0; i < width; ++i) to[i] = from[i] * scale * weight[i];
    }
  });
}

void rope_turns(const double* frequencies, int head_dim, double magnitude, const int* positions, int64_t tokens,
                float* turns) {
  require_head_dim(head_dim);
  check_elements(tokens, head_dim);
  require_pointer("frequencies", frequencies);
  require_pointer("positions", positions);
  require_pointer("turns", turns);
  const int half = head_dim / 2;
  in_parts(tokens, int64_t{head_dim} * 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int j = 0; j < half; ++j) {
        const double angle = positions[t] * frequencies[j];
        turns[t * head_dim + j] = static_cast<float>(magnitude * std::cos(angle));
        turns[t * head_dim + half + j] = static_cast<float>(magnitude * std::sin(angle));
      }
    }
  });
}

void rope_turn(const float* turns, int64_t tokens, int heads, int head_dim, RopePairs pairs, float* rows) {
  require_head_dim(head_dim);
  require_positive("heads", heads);
  require_rope_pairs(pairs);
  const int64_t width = int64_t{heads} * head_dim;
  check_elements(tokens, width);
  require_pointer("turns", turns);
  require_pointer("rows", rows);
  const int half = head_dim / 2;
  in_parts(tokens, width, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* cosine = turns + t * head_dim;
      const float* sine = cosine + half;
      for (int h = 0; h < heads; ++h) {
        float* row = rows + t * width + int64_t{h} * head_dim;
        if (pairs == RopePairs::kHalves) {
          turn_planar(cosine, sine, half, row);
          continue;
        }
        for (int j = 0; j < half; ++j) {
          const float re = row[2 * j], im = row[2 * j + 1];
          row[2 * j] = re * cosine[j] - im * sine[j];
          row[2 * j + 1] = re * sine[j] + im * cosine[j];
        }
      }
    }
  });
}

void swiglu(const float* gate, const float* up, int64_t count, float* out) {
  check_elements(count, 1);
  require_pointer("gate", gate);
  require_pointer("up", up);
  require_pointer("out", out);
  const MatrixKernels& kernels = resolve_matrix(backend_index("auto"));
  in_parts(count, 1, [&](int64_t begin, int64_t end) {
    kernels.silu_product(gate + begin, up + begin, static_cast<size_t>(end - begin), out + begin);
  });
}

void add_rows(const float* in, int64_t count, float* out) {
  check_elements(count, 1);
  require_pointer("in", in);
  require_pointer("out", out);
  in_parts(count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] += in[i];
  });
}

}  // namespace kvasir
