// The checks of kvasir/device_model.h.
#include <cmath>
#include <string>

#include "base/checked.h"
#include "base/checks.h"
#include "kernels/cuda/model/operations.h"
#include "kvasir/device_model.h"

namespace kvasir {
namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(ErrorCode::kDeviceFailed,
              std::string(what) + ": " + cudaGetErrorName(status) + ", " + cudaGetErrorString(status));
}

// Rows of twice the width, in two parts: the most that any function reaches.
void check_elements(int64_t rows, int64_t width) {
  require_positive("rows", rows);
  require_positive("width", width);
  checked_multiply(checked_multiply(rows, width, "elements"), 4 * sizeof(float), "bytes");
}

void check_epsilon(double epsilon) {
  if (!(epsilon >= 0) || std::isinf(epsilon)) refuse("epsilon is " + float_text(epsilon));
}

void check_precision(Precision precision) { require_range("precision", static_cast<int>(precision), 0, 1); }

cudaStream_t on(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

void device_embed(const void* ids, int64_t rows, const void* weights, int64_t width, void* out, void* stream) {
  check_elements(rows, width);
  require_pointer("ids", ids);
  require_pointer("weights", weights);
  require_pointer("out", out);
  check(cuda::launch_embed(static_cast<const int*>(ids), rows, static_cast<const uint16_t*>(weights), width,
                           static_cast<float*>(out), on(stream)),
        "embedding tokens");
}

void device_gather(const void* in, const void* from, int64_t rows, int64_t width, void* out, void* stream) {
  check_elements(rows, width);
  require_pointer("in", in);
  require_pointer("from", from);
  require_pointer("out", out);
  check(cuda::launch_gather(static_cast<const float*>(in), static_cast<const int*>(from), rows, width,
                            static_cast<float*>(out), on(stream)),
        "gathering rows");
}

void device_rms_norm(const void* in, const void* weight, double epsilon, int64_t rows, int64_t width,
                     Precision precision, void* out, void* stream) {
  check_elements(rows, width);
  check_epsilon(epsilon);
  check_precision(precision);
  require_pointer("in", in);
  require_pointer("weight", weight);
  require_pointer("out", out);
  check(cuda::launch_rms_norm(static_cast<const float*>(in), {static_cast<const float*>(weight), epsilon}, rows, width,
                              precision, out, on(stream)),
        "a norm");
}

void device_add(const void* product, const void* bias, void* state, const void* weight, double epsilon, int64_t rows,
                int64_t width, Precision precision, void* out, void* stream) {
  check_elements(rows, width);
  check_epsilon(epsilon);
  check_precision(precision);
  require_pointer("product", product);
  require_pointer("state", state);
  if (weight != nullptr) require_pointer("out", out);
  check(cuda::launch_add(product, static_cast<const float*>(bias), static_cast<float*>(state),
                         {static_cast<const float*>(weight), epsilon}, rows, width, precision, out, on(stream)),
        "adding rows");
}

void device_rope_turns(const void* frequencies, int head_dim, double magnitude, const void* positions, int64_t tokens,
                       void* turns, void* stream) {
  require_head_dim(head_dim);
  check_elements(tokens, head_dim);
  require_pointer("frequencies", frequencies);
  require_pointer("positions", positions);
  require_pointer("turns", turns);
  check(cuda::launch_rope_turns(static_cast<const double*>(frequencies), head_dim, magnitude,
                                static_cast<const int*>(positions), tokens, static_cast<float*>(turns), on(stream)),
        "angles of RoPE");
}

void device_heads(const void* product, const void* bias, const void* query_norm, const void* key_norm, double epsilon,
                  const void* turns, int64_t rows, int query_heads, int kv_heads, int head_dim, RopePairs pairs,
                  bool turn_keys, Precision precision, void* queries, void* keys, void* values, void* stream) {
  require_head_dim(head_dim);
  require_positive("query_heads", query_heads);
  require_positive("kv_heads", kv_heads);
  require_range("pairs", static_cast<int>(pairs), 0, 1);
  check_elements(rows, checked_multiply(query_heads + 2 * int64_t{kv_heads}, head_dim, "a row"));
  check_epsilon(epsilon);
  check_precision(precision);
  require_pointer("product", product);
  require_pointer("turns", turns);
  require_pointer("queries", queries);
  require_pointer("keys", keys);
  require_pointer("values", values);
  const cuda::Heads heads = {product,
                             static_cast<const float*>(bias),
                             static_cast<const float*>(query_norm),
                             static_cast<const float*>(key_norm),
                             epsilon,
                             static_cast<const float*>(turns),
                             rows,
                             {query_heads, kv_heads, head_dim, pairs, turn_keys},
                             queries,
                             static_cast<uint16_t*>(keys),
                             static_cast<uint16_t*>(values)};
  check(cuda::launch_heads(heads, precision, on(stream)), "taking heads apart");
}

void device_swiglu(const void* product, const void* bias, int64_t rows, int64_t width, Precision precision, void* out,
                   void* stream) {
  check_elements(rows, width);
  check_precision(precision);
  require_pointer("product", product);
  require_pointer("out", out);
  check(cuda::launch_swiglu(product, static_cast<const float*>(bias), rows, width, precision, out, on(stream)),
        "SwiGLU");
}

void device_to_product(const void* in, int64_t rows, int64_t width, Precision precision, void* out, void* stream) {
  check_elements(rows, width);
  check_precision(precision);
  require_pointer("in", in);
  require_pointer("out", out);
  check(cuda::launch_to_product(static_cast<const float*>(in), rows, width, precision, out, on(stream)),
        "rows for a product");
}

void device_from_product(const void* product, int64_t rows, int64_t width, Precision precision, void* out,
                         void* stream) {
  check_elements(rows, width);
  check_precision(precision);
  require_pointer("product", product);
  require_pointer("out", out);
  if (out == product && precision != Precision::kExact) refuse("out is the product, whose numbers are half as long");
  check(cuda::launch_from_product(product, rows, width, precision, static_cast<float*>(out), on(stream)),
        "rows from a product");
}

void device_argmax(const void* in, int64_t rows, int64_t width, void* out, void* stream) {
  check_elements(rows, width);
  require_range("width", width, 1, INT32_MAX);
  require_pointer("in", in);
  require_pointer("out", out);
  check(cuda::launch_argmax(static_cast<const float*>(in), rows, width, static_cast<int*>(out), on(stream)),
        "the highest of rows");
}

void device_random(uint64_t seed, double deviation, int64_t count, ElementType type, void* out, void* stream) {
  check_elements(count, 1);
  require_range("type", static_cast<int>(type), 0, 2);
  require_pointer("out", out);
  if (!(deviation >= 0) || std::isinf(deviation)) refuse("a deviation of " + float_text(deviation));
  check(cuda::launch_random(seed, deviation, count, type, out, on(stream)), "random numbers");
}

}  // namespace kvasir
