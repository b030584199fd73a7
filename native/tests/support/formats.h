// Walks what the registry offers: backends, and page formats (codec, side, bits, option setting, head dim).
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "codecs/codec.h"
#include "kernels/kernels.h"
#include "kvasir/codec.h"
#include "reference/page.h"

namespace support {

constexpr int kHeadDims[] = {32, 48, 64, 80, 128, 256};
constexpr int kRowCounts[] = {1, 2, 3, 4, 5, 7, 8, 16, 32};

// One page format, as the library configured it and as the reference reads it.
struct Format {
  int codec;
  kvasir::PageFormat page;
  reference::PageShape shape;
  const reference::ReferenceCodec* reference;
  std::string text;  // for failure messages
  reference::Options options;
};

inline std::vector<const kvasir::Backend*> available_backends() {
  std::vector<const kvasir::Backend*> list;
  for (int i = 0; i < kvasir::backend_list_size(); ++i) {
    if (kvasir::backend_at(i).available()) list.push_back(&kvasir::backend_at(i));
  }
  return list;
}

// The scalar backend is always last.
inline const kvasir::Backend& scalar_backend() { return kvasir::backend_at(kvasir::backend_list_size() - 1); }

inline Format make_format(int codec, kvasir::Side side, int bits, int head_dim, const reference::Options& options) {
  const reference::ReferenceCodec& reference = reference::reference_codec(kvasir::codec_name(codec));
  const auto page = kvasir::configure_codec(codec, side, bits, head_dim, options);
  const auto shape = reference.shape(static_cast<reference::Side>(side), bits, head_dim, options);
  std::ostringstream text;
  text << kvasir::codec_name(codec) << " " << bits << " bits, " << (side == kvasir::Side::kKeys ? "keys" : "values")
       << ", d=" << head_dim;
  for (const auto& [name, value] : options) text << ", " << name << "=" << value;
  return {codec, page, shape, &reference, text.str(), options};
}

// A part for these rows as encode finds it: where parts vary in size, the head is laid out, and the size is its own.
inline std::vector<uint8_t> begin_part(const Format& format, const kvasir::CodecKernels& kernels, const float* rows,
                                       const float* importance = nullptr) {
  if (!format.page.varies()) return std::vector<uint8_t>(format.page.page_bytes);
  const std::vector<float> ones(format.page.head_dim, 1.0f);
  std::vector<uint8_t> head(format.page.head_bytes);
  const size_t bytes = kernels.lay_out(format.page, rows, importance ? importance : ones.data(), head.data());
  head.resize(bytes);
  return head;
}

// Every codec, side, width and option setting at one head dim.
inline std::vector<Format> all_formats(int head_dim) {
  std::vector<Format> list;
  for (int codec = 0; codec < kvasir::codec_count(); ++codec) {
    const reference::ReferenceCodec& reference = reference::reference_codec(kvasir::codec_name(codec));
    if (reference.trained) continue;
    for (const kvasir::Side side : {kvasir::Side::kKeys, kvasir::Side::kValues}) {
      for (int bits = 1; bits <= 16; ++bits) {
        if (!kvasir::codec_has_bits(codec, bits)) continue;
        for (const auto& options : reference.variants(static_cast<reference::Side>(side), head_dim)) {
          list.push_back(make_format(codec, side, bits, head_dim, options));
        }
      }
    }
  }
  return list;
}

}  // namespace support
