// Page formats of the codec "spectral", with bases and without, and pages of them.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "codecs/basis.h"
#include "support/doctest.h"
#include "support/formats.h"
#include "support/guarded.h"
#include "support/spectral_basis.h"

namespace support {

struct SpectralCase {
  kvasir::PageFormat format;
  std::shared_ptr<const kvasir::PageModel> model;
  std::string text;

  // Null without a basis.
  const kvasir::Basis* basis() const { return static_cast<const kvasir::Basis*>(model.get()); }
  const float* vectors(int head) const { return model ? basis()->vectors(head) : nullptr; }
  size_t head_bytes() const { return format.page_bytes / static_cast<size_t>(format.heads); }
};

// `basis` may be null.
inline SpectralCase spectral_case(kvasir::Side side, int d, double bits, int heads,
                                  const std::shared_ptr<const kvasir::Basis>& basis,
                                  const kvasir::CodecOptions& others = {}) {
  const int codec = kvasir::codec_index("spectral");
  kvasir::CodecOptions options = others;
  options["code_bits"] = bits;
  SpectralCase made;
  made.format = kvasir::configure_codec(codec, side, 2, d, options);
  kvasir::Codebooks given;
  given.bases[static_cast<int>(side)] = basis;
  made.model = kvasir::codec_at(codec).attach(made.format, heads, given);
  made.text = std::string(side == kvasir::Side::kKeys ? "keys" : "values") + ", d=" + std::to_string(d) + ", " +
              std::to_string(bits) + " bits" + (basis ? ", with a basis" : "");
  return made;
}

inline const kvasir::CodecKernels& spectral_kernels_of(const kvasir::Backend& backend) {
  return *backend.codecs[kvasir::codec_index("spectral")];
}

inline std::vector<uint8_t> spectral_page(const kvasir::Backend& backend, const SpectralCase& of,
                                          const std::vector<float>& rows) {
  Guarded<uint8_t> page(of.format.page_bytes);
  std::fill_n(page.data(), page.size(), 0xAA);
  spectral_kernels_of(backend).encode(of.format, rows.data(), page.data());
  CHECK_MESSAGE(page.guards_intact(), of.text);
  return std::vector<uint8_t>(page.data(), page.data() + page.size());
}

}  // namespace support
