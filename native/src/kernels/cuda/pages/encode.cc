#include "kernels/cuda/pages/encode.h"

#include "kernels/cuda/pages/encode_parts.h"

namespace kvasir::cuda {
namespace {

// The request for the sides of one family alone; false where there are none.
bool of_family(bool fragments, const EncodeRequest& request, EncodeRequest* out) {
  *out = request;
  bool any = false;
  for (SideFormat& side : out->sides) {
    if (side.fragments != fragments) side.format.elements = Elements::kOwn;
    any |= side.present();
  }
  return any;
}

}  // namespace

cudaError_t encode_pages(const EncodeRequest& request, cudaStream_t stream) {
  const int64_t rows = request.page_count * kPageTokens;
  if (request.page_count < 0 || request.first_row < 0) return cudaErrorInvalidValue;
  if (request.input != nullptr ? !request.input->readable(request.first_row, rows)
                               : request.first_row + rows > request.staging.rows) {
    return cudaErrorInvalidValue;
  }
  for (const SideFormat& side : request.sides) {
    if (side.present() && side.format.head_dim != request.shape.head_dim) {
      return cudaErrorInvalidValue;
    }
  }
  EncodeRequest part;
  if (of_family(true, request, &part)) {
    const cudaError_t error = encode_fragments(part, stream);
    if (error != cudaSuccess) return error;
  }
  if (!of_family(false, request, &part)) return cudaSuccess;
  return request.input == nullptr ? encode_canonical(part, stream) : cudaErrorInvalidValue;
}

}  // namespace kvasir::cuda
