// Codebooks of CommVQ in device memory: how they lie, and how a host makes the bytes to upload, once a layer.
//
// Keys. Decoding adds up two rows of a table for each stage, so attention is bound by what shared memory delivers. The
// tables of one kv head stay in a block's shared memory as whole numbers: fixed point with one step for each RoPE pair.
//
//   kExact   16 bits an entry, chosen so that sums fit 16 bits: about 1e-7 of a key's power is lost
//   kFast    8 bits an entry, 12 or 16 for stages that need them: at most 2.5e-5 of a key's variance (planes.h)
//
// How tables lie is in table_layout.h.
//
// Values. The codebook lies as commvq::ValueModel has it: float16 [kv_heads][codes][head_dim]; upload it as it is.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "codecs/commvq/model.h"
#include "kernels/cuda/commvq/table_layout.h"

namespace kvasir::cuda {

enum class KeyPrecision : int { kExact = 0, kFast = 1 };

// How the tables of a model lie on the current device. Asks it for its shared memory.
cudaError_t plan_key_tables(const commvq::KeyModel& model, KeyPrecision precision, KeyTableLayout* layout);

// Writes layout.bytes() bytes, to be uploaded to memory that is 128-byte aligned. frequencies: [head_dim / 2], radians
// per position, and the factor by which the model multiplies rotated keys, as the host's attention has them. Pairs that
// only fill a slice up turn by nothing and are 0.
void pack_key_tables(const commvq::KeyModel& model, const KeyTableLayout& layout, const double* frequencies,
                     double magnitude, uint8_t* bytes);

// Bytes of model.tables, for the decoders of rows (rows.h) and for values.
inline size_t plain_table_bytes(const commvq::KeyModel& model) {
  return sizeof(uint16_t) * model.page.kv_heads * model.page.stages * model.entries * model.head_dim;
}
inline size_t plain_table_bytes(const commvq::ValueModel& model) {
  return sizeof(uint16_t) * model.kv_heads * model.page.codes * model.head_dim;
}

}  // namespace kvasir::cuda
