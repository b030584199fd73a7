// CommVQ's pages as float32 rows: prompts, inspection, combinations without a fused kernel. Arithmetic and its order
// are those of the host's decoders: rows are equal to theirs bit for bit.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/commvq/format.h"
#include "kernels/cuda/rows/unpack.h"
#include "kvasir/types.h"

namespace kvasir::cuda {

// Keys before RoPE. tables: those of commvq::KeyModel, as they are (plain_table_bytes).
cudaError_t launch_commvq_key_rows(const commvq::KeyPage& page, int head_dim, RopePairs pairs, const uint16_t* tables,
                                   const RowUnpacking& unpacking, cudaStream_t stream);

// tables: those of commvq::ValueModel, as they are.
cudaError_t launch_commvq_value_rows(const commvq::ValuePage& page, int kv_heads, int head_dim, const uint16_t* tables,
                                     const RowUnpacking& unpacking, cudaStream_t stream);

}  // namespace kvasir::cuda
