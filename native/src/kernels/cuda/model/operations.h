// kvasir/device_model.h without its checks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kvasir/device_model.h"

namespace kvasir::cuda {

struct RowNorm {
  const float* weight;  // null: no norm
  double epsilon;
};

cudaError_t launch_embed(const int* ids, int64_t rows, const uint16_t* weights, int64_t width, float* out,
                         cudaStream_t stream);
cudaError_t launch_gather(const float* in, const int* from, int64_t rows, int64_t width, float* out,
                          cudaStream_t stream);
cudaError_t launch_rms_norm(const float* in, const RowNorm& norm, int64_t rows, int64_t width, Precision precision,
                            void* out, cudaStream_t stream);
cudaError_t launch_add(const void* product, const float* bias, float* state, const RowNorm& norm, int64_t rows,
                       int64_t width, Precision precision, void* out, cudaStream_t stream);
cudaError_t launch_rope_turns(const double* frequencies, int head_dim, double magnitude, const int* positions,
                              int64_t tokens, float* turns, cudaStream_t stream);

struct HeadShape {
  int query_heads;
  int kv_heads;
  int head_dim;
  RopePairs pairs;
  bool turn_keys;
};

struct Heads {
  const void* product;
  const float* bias;
  const float* query_norm;
  const float* key_norm;
  double epsilon;
  const float* turns;
  int64_t rows;
  HeadShape shape;
  void* queries;
  uint16_t* keys;
  uint16_t* values;
};
cudaError_t launch_heads(const Heads& heads, Precision precision, cudaStream_t stream);

cudaError_t launch_swiglu(const void* product, const float* bias, int64_t rows, int64_t width, Precision precision,
                          void* out, cudaStream_t stream);
cudaError_t launch_to_product(const float* in, int64_t rows, int64_t width, Precision precision, void* out,
                              cudaStream_t stream);
cudaError_t launch_from_product(const void* product, int64_t rows, int64_t width, Precision precision, float* out,
                                cudaStream_t stream);
cudaError_t launch_argmax(const float* in, int64_t rows, int64_t width, int* out, cudaStream_t stream);
cudaError_t launch_random(uint64_t seed, double deviation, int64_t count, ElementType type, void* out,
                          cudaStream_t stream);

}  // namespace kvasir::cuda
