// Seals pages with labels: matches rows with patterns, decides which to keep, and stores residuals as uniform codes.
//
//   kmeans.h                 mines the vectors that all pages see, at the first page that a sequence seals
//   add_centres              each later page adds its centre before it is matched
//   seal_pattern_pages       labels and residuals, byte for byte those of the host's kernels given equal tables
//
// Head dims 64, 96, 128 and 256; default axis and group. Pages lie as layout/labels.h has them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/page_format.h"
#include "kernels/cuda/attend/types.h"
#include "kernels/cuda/layout/labels.h"
#include "kernels/cuda/layout/staging.h"

namespace kvasir::cuda {

// Half way between the least and the greatest element of each channel of each page, into vectors `first_vector`, ....
struct CentreRequest {
  RowShape shape;
  Staging staging;
  int64_t first_row;  // page p holds staging rows first_row + 128 p .. + 127
  int64_t page_count;
  VectorMemory vectors[2];  // keys, values
  int first_vector[2];
};
cudaError_t add_centres(const CentreRequest& request, cudaStream_t stream);

// Numbers of the codec (codecs/pattern/format.h).
struct MatchOptions {
  bool present = false;  // else the side is left alone, but for its labels, which become 0
  bool squared = false;  // match by squared distance, else by min-max distance
  bool accept = true;    // keys: labels must lower the page's squared ranges
  float ratio = -1.0f;   // values: largest ratio of flattened to raw range; negative: no test
  bool raw = true;       // no pattern is a match like others
};

struct PatternSealRequest {
  RowShape shape;
  int bits[2];  // 1, 2, 3, 4 or 8; of a side that is not present any width of HeadLayout
  Grid grids[2] = {};
  MatchOptions options[2];
  VectorTable tables[2];  // as they are after add_centres
  Staging staging;        // rows are finite and at most kMaxMagnitude
  int64_t first_row;      // page p holds staging rows first_row + 128 p .. + 127
  int64_t first_page;     // of the sequence: page p of the launch is its page first_page + p, as tables count them
  uint8_t* const* pages;  // on the host: [page_count], device addresses, 128-byte aligned
  int64_t page_count;
};

// Whether the current device has the shared memory for it: 155 KB with 256 channels, 88 with 128.
bool seals_pattern_pages(int head_dim);

cudaError_t seal_pattern_pages(const PatternSealRequest& request, cudaStream_t stream);

}  // namespace kvasir::cuda
