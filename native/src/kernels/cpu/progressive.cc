// The progressive codec: the uniform kernel on its pages, an encoder of exact 16-bit codes, and the shrink.
//
// A 2b-bit code with halves h and l is 2^b h + l = (2^b + 1) h + (l - h). The quotient by 2^b + 1, rounded, is thus h,
// one more where l - h passes half of 2^b + 1, or one less where h - l does: bytes, compared and added, no product.
#include "codecs/progressive/formula.h"
#include "codecs/uniform/format.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/uniform_pack.h"
#include "kernels/forward_inl.h"

namespace kvasir::KVASIR_LEVEL {
namespace {

using progressive::Shift;
using uniform::Layout;

typedef uint8_t Bytes __attribute__((vector_size(sizeof(U32))));

// Rows of a page as codes of format.bits bits.
struct PageCodes {
  alignas(64) int32_t at[kPageTokens][kMaxSize];
};

// Plain loops over one row: the compiler makes vectors of doubles of them.
void encode_row(const PageFormat& format, const float* x, const float* lo, const float* range, int32_t* codes) {
  const int d = format.head_dim;
  if (format.grid == Grid::kCells) {
    for (int c = 0; c < d; ++c) {
      const double quotient = (static_cast<double>(x[c]) - lo[c]) * progressive::steps_of(Grid::kCells) / range[c];
      const int32_t code = static_cast<int32_t>(quotient);
      codes[c] = (code < 65535 ? code : 65535) >> (16 - format.bits);
    }
    return;
  }
  for (int c = 0; c < d; ++c) {
    const double quotient = (static_cast<double>(x[c]) - lo[c]) * progressive::steps_of(Grid::kEnds) / range[c];
    codes[c] = static_cast<int32_t>(__builtin_rint(quotient));
  }
  if (progressive::shift_of(format) != Shift::kEquivalent) {
    for (int c = 0; c < d; ++c) codes[c] >>= 16 - format.bits;
    return;
  }
  for (int bits = 8; bits >= format.bits; bits /= 2) {
    for (int c = 0; c < d; ++c) {
      codes[c] = static_cast<int32_t>(progressive::narrow(static_cast<uint32_t>(codes[c]), bits));
    }
  }
}

// modify(&lo, &range) for the parameters of every group.
template <class Modify>
void modify_page(const Layout& layout, uint8_t* page, const Modify& modify) {
  for (int g = 0; g < layout.groups; ++g) {
    uint16_t* lo = reinterpret_cast<uint16_t*>(page + layout.lo_offset(g));
    uint16_t* range = reinterpret_cast<uint16_t*>(page + layout.range_offset(g));
    for (int e = 0; e < layout.entries; ++e) modify(lo + e, range + e);
  }
}

void encode(const PageFormat& format, const float* rows, uint8_t* page) {
  const Layout layout = uniform::layout_of(format);
  const int d = format.head_dim;
  PageScales scales;
  write_parameters(format, layout, rows, page, scales);
  const uint16_t* stored = reinterpret_cast<const uint16_t*>(page);
  alignas(64) float range[1024];
  for (int g = 0; g < layout.groups; ++g) {
    const uint16_t* ranges = stored + layout.range_offset(g) / 2;
    for (int e = 0; e < layout.entries; ++e) {
      // All elements of a group without a range are lo: any divisor gives their code, which is 0.
      const float width = half_to_float(ranges[e]);
      range[g * layout.entries + e] = width > 0.0f ? width : 1.0f;
    }
  }
  PageCodes codes;
  for (int t = 0; t < kPageTokens; ++t) {
    alignas(64) float row_lo[kMaxSize], row_range[kMaxSize];
    for (int c = 0; c < d; ++c) {
      const bool by_channel = format.axis == Axis::kChannel;
      const int i = by_channel ? t / format.group * layout.entries + c : c / format.group * layout.entries + t;
      row_lo[c] = scales.lo[i];
      row_range[c] = range[i];
    }
    encode_row(format, rows + static_cast<size_t>(t) * d, row_lo, row_range, codes.at[t]);
  }
  pack_codes(
      format, layout, [&](int token, int channel) { return load(codes.at[token] + channel); }, page);
  if (progressive::shift_of(format) != Shift::kModified) return;
  modify_page(layout, page,
              [&](uint16_t* lo, uint16_t* at) { progressive::modify_parameters_to(format.bits, lo, at); });
}

// Bytes with the halves of codes, each 0 .. 2^kBits - 1.
template <int kBits, bool kEquivalent>
U32 join(U32 high, U32 low) {
  if constexpr (!kEquivalent) return high;
  const Bytes h = (Bytes)high, l = (Bytes)low;
  const Bytes half = Bytes{} + static_cast<uint8_t>(1 << (kBits - 1));
  const Bytes more = (Bytes)(l > h) & (Bytes)(l - h > half);
  const Bytes less = (Bytes)(h > l) & (Bytes)(h - l > half);
  return (U32)(h - more + less);  // true is -1
}

template <int kBits, bool kEquivalent>
U32 narrow_bytes(U32 codes, int shift) {
  const U32 mask = U32{} + 0x01010101u * ((1u << kBits) - 1);
  return join<kBits, kEquivalent>((codes >> (shift + kBits)) & mask, (codes >> shift) & mask);
}

template <bool kEquivalent>
void shrink_planes(const Layout& wide, const Layout& small, int bits, const uint8_t* page, uint8_t* out) {
  constexpr size_t kRegister = sizeof(U32);
  const size_t bytes = small.planes[0].bytes();
  uint8_t* to = out + small.plane_offset[0];
  const uint8_t* from = page + wide.plane_offset[0];
  if (bits == 8) {
    const uint8_t* high = page + wide.plane_offset[1];
    for (size_t i = 0; i < bytes; i += kRegister) {
      store_words(to + i, join<8, kEquivalent>(load_words(high + i), load_words(from + i)));
    }
    return;
  }
  // A vector of the narrow plane holds two of the wide one: the codes of the second in the upper half of each byte.
  for (size_t v = 0; v < bytes; v += CodePlane::kVectorBytes) {
    for (size_t i = v; i < v + CodePlane::kVectorBytes; i += kRegister) {
      const U32 first = load_words(from + v + i);
      const U32 second = load_words(from + v + i + CodePlane::kVectorBytes);
      U32 words;
      if (bits == 4) {
        words = narrow_bytes<4, kEquivalent>(first, 0) | narrow_bytes<4, kEquivalent>(second, 0) << 4;
      } else {
        words = narrow_bytes<2, kEquivalent>(first, 0) | narrow_bytes<2, kEquivalent>(first, 4) << 2 |
                narrow_bytes<2, kEquivalent>(second, 0) << 4 | narrow_bytes<2, kEquivalent>(second, 4) << 6;
      }
      store_words(to + i, words);
    }
  }
}

void shrink(const PageFormat& from, const PageFormat& to, const uint8_t* page, uint8_t* out) {
  const Layout wide = uniform::layout_of(from);
  const Layout small = uniform::layout_of(to);
  const Shift shift = progressive::shift_of(to);
  memmove(out, page, wide.plane_offset[0]);
  if (shift == Shift::kModified) {
    modify_page(wide, out, [&](uint16_t* lo, uint16_t* range) { progressive::modify_parameters(to.bits, lo, range); });
  }
  (shift == Shift::kEquivalent ? shrink_planes<true> : shrink_planes<false>)(wide, small, to.bits, page, out);
}

}  // namespace

using Uniform = Forward<uniform_kernels>;
const CodecKernels progressive_kernels = {
    encode, Uniform::decode, Uniform::key_scores, Uniform::value_sum, nullptr, nullptr, shrink,
};

}  // namespace kvasir::KVASIR_LEVEL
