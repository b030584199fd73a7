// Shrinking: codes as quantising at the narrower width would have given them; the two other shifts as docs/format.md
// states them; in place and to other memory; both families of layouts.
#include "kernels/cuda/pages/shrink.h"

#include <cmath>
#include <cstring>
#include <random>

#include "kernels/cuda/layout/pack.h"
#include "kernels/cuda/pages/shrink_step.cuh"
#include "pages/page_case.h"
#include "reference/half.h"
#include "reference/progressive_page.h"
#include "reference/uniform_page.h"

namespace {

using namespace kvasir::cuda;
using namespace page_case;

// ((2^2b - 2^b + 1) (X + 2^(b-1))) >> 3b, in whole numbers.
uint32_t narrow(uint64_t code, int b, bool rounded) {
  const uint64_t factor = (1ull << 2 * b) - (1ull << b) + 1;
  return static_cast<uint32_t>(rounded ? factor * (code + (1ull << (b - 1))) >> 3 * b : code >> b);
}

HOST_CASE("narrow: every code, in every place of a word") {
  for (const bool rounded : {false, true}) {
    for (uint32_t code = 0; code < 65536; ++code) {
      const uint32_t other = 65535 - code;
      const uint32_t low = (code & 255) | (other & 255) << 8 | (code & 255) << 16 | (other & 255) << 24;
      const uint32_t high = code >> 8 | other >> 8 << 8 | code >> 8 << 16 | other >> 8 << 24;
      const uint32_t a = narrow(code, 8, rounded), b = narrow(other, 8, rounded);
      CHECK(narrow_words(low, high, 8, rounded) == (a | b << 8 | a << 16 | b << 24), code);
    }
    for (uint32_t x = 0; x < 256; ++x) {
      for (uint32_t y = 0; y < 256; ++y) {
        uint32_t four = 0, two = 0;
        const uint32_t bytes[8] = {x, y, y, x, y, y, x, x};
        for (int i = 0; i < 8; ++i) {
          const int place = 8 * (i % 4) + 4 * (i / 4);
          four |= narrow(bytes[i], 4, rounded) << place;
          two |= (narrow(bytes[i] & 15, 2, rounded) | narrow(bytes[i] >> 4, 2, rounded) << 2) << place;
        }
        const uint32_t first = x | y << 8 | y << 16 | x << 24, second = y | y << 8 | x << 16 | x << 24;
        CHECK(narrow_words(first, second, 4, rounded) == four, x << " " << y);
        CHECK(narrow_words(first, second, 2, rounded) == two, x << " " << y);
      }
    }
  }
}

// One canonical part after a shift of 1 (direct) or 2 (modified).
std::vector<uint8_t> shifted(const reference::PageShape& wide, const std::vector<uint8_t>& part, int shift) {
  reference::PageShape small = wide;
  small.bits = wide.bits / 2;
  const int b = small.bits;
  std::vector<uint8_t> out(reference::uniform::page_bytes(small), 0);
  std::memcpy(out.data(), part.data(), reference::uniform::codes_offset(wide));
  const int entries = reference::uniform::entries(wide);
  for (int g = 0; shift == 2 && g < reference::uniform::groups(wide); ++g) {
    for (int e = 0; e < entries; ++e) {
      uint8_t* lo = out.data() + 2 * (static_cast<size_t>(g) * 2 * entries + e);
      uint8_t* range = lo + 2 * entries;
      const double r = reference::half_value(reference::uniform::load16(range));
      const double l = reference::half_value(reference::uniform::load16(lo));
      const double step = r / (std::pow(4.0, b) - 1.0);
      reference::uniform::store16(lo, reference::half_nearest(l + (std::pow(2.0, b) - 1.0) * step / 2.0));
      reference::uniform::store16(range, reference::half_nearest(r * std::pow(2.0, b) / (std::pow(2.0, b) + 1.0)));
    }
  }
  for (int t = 0; t < kvasir::kPageTokens; ++t) {
    for (int c = 0; c < wide.head_dim; ++c) {
      const int code = reference::uniform::load_code(wide, part.data(), t, c);
      reference::uniform::store_code(small, out.data(), t, c, static_cast<int>(narrow(code, b, shift == 0)));
    }
  }
  return out;
}

reference::PageShape shape_of(reference::Side side, const Kind& kind, int d) {
  return reference::progressive_reference().shape(side, kind.bits, d, kind.options);
}

// A page as its canonical parts, shifted part by part, and laid out again.
std::vector<uint8_t> shifted_page(const Setting& wide, const Setting& small, const std::vector<uint8_t>& page,
                                  int shift) {
  SideFormat from[2], to[2];
  make_sides(wide, from);
  make_sides(small, to);
  std::vector<uint8_t> out(static_cast<size_t>(page_bytes(wide.kv_heads, to)));
  const HeadLayout before = head_layout(from[0].format, from[1].format);
  const HeadLayout after = head_layout(to[0].format, to[1].format);
  for (int h = 0; h < wide.kv_heads; ++h) {
    for (int s = 0; s < 2; ++s) {
      const auto shape = shape_of(static_cast<reference::Side>(s), s == 0 ? wide.keys : wide.values, wide.head_dim);
      std::vector<uint8_t> part(reference::uniform::page_bytes(shape));
      const uint8_t* block = page.data() + static_cast<size_t>(h) * before.bytes();
      if (!wide.fragments) {
        std::memcpy(part.data(), page.data() + from[s].offset + h * from[s].stride, part.size());
      } else if (s == 0) {
        unpack_keys(before, block, part.data());
      } else {
        unpack_values(before, block, part.data());
      }
      const std::vector<uint8_t> less = shifted(shape, part, shift);
      uint8_t* there = out.data() + static_cast<size_t>(h) * after.bytes();
      if (!wide.fragments) {
        std::memcpy(out.data() + to[s].offset + h * to[s].stride, less.data(), less.size());
      } else if (s == 0) {
        pack_keys(after, less.data(), there);
      } else {
        pack_values(after, less.data(), there);
      }
    }
  }
  return out;
}

HOST_CASE("shrink steps: a byte's kv head, wherever it lies") {
  std::mt19937 random(17);
  for (int i = 0; i < 100000; ++i) {
    ShrinkSide side = {};
    side.to_stride = kVectorBytes * (1 + random() % (1u << random() % 22));
    side.per_stride = reciprocal_of(side.to_stride);
    const uint32_t first = random() % ((1u << 31) / side.to_stride) * side.to_stride;
    for (const uint32_t offset : {uint32_t{0}, static_cast<uint32_t>(random()) % side.to_stride, side.to_stride - 1}) {
      uint32_t at = first + offset;
      const uint32_t head = take_head(side, &at);
      CHECK(head == first / side.to_stride && at == offset, first << " + " << offset << " by " << side.to_stride);
    }
  }
}

// The steps of the kernels on the host, one vector after the other.
void check_steps(const Setting& wide, const Setting& small, const std::vector<std::vector<uint8_t>>& pages,
                 const std::vector<std::vector<uint8_t>>& expected, bool in_place) {
  SideFormat from[2], to[2];
  make_sides(wide, from);
  make_sides(small, to);
  ShrinkPlan plan;
  const bool planned = plan_shrink(wide.kv_heads, from, to, &plan);
  CHECK(planned, describe(wide));
  for (size_t p = 0; planned && p < pages.size(); ++p) {
    std::vector<uint8_t> source = pages[p], target(pages[p].size(), 0xa5);
    uint8_t* const out = (in_place ? source : target).data();
    for (uint32_t v = 0; v < plan.vectors; ++v) {
      if (plan.modifies) {
        store_vector<true>(out, v, load_vector<true>(plan, source.data(), v));
      } else {
        store_vector<false>(out, v, load_vector<false>(plan, source.data(), v));
      }
    }
    std::vector<uint8_t> whole = in_place ? pages[p] : std::vector<uint8_t>(pages[p].size(), 0xa5);
    std::copy(expected[p].begin(), expected[p].end(), whole.begin());
    const std::string wrong = difference(in_place ? source : target, whole);
    CHECK(wrong.empty(), describe(wide) << (in_place ? " in place" : " apart") << " page " << p << ": " << wrong);
  }
}

void check_launch(const Setting& wide, const Setting& small, const std::vector<std::vector<uint8_t>>& pages,
                  const std::vector<std::vector<uint8_t>>& expected, bool in_place) {
  const size_t from_bytes = pages[0].size(), to_bytes = expected[0].size() + 256;
  std::vector<uint8_t> all;
  for (const auto& page : pages) all.insert(all.end(), page.begin(), page.end());
  const Buffer from(all), to(to_bytes * pages.size());
  std::vector<ShrinkPage> list;
  for (size_t p = 0; p < pages.size(); ++p) {
    uint8_t* source = from.data() + from_bytes * p;
    list.push_back({source, in_place ? source : to.data() + to_bytes * p});
  }
  ShrinkRequest request = {};
  request.shape = {wide.kv_heads, wide.head_dim};
  make_sides(wide, request.from);
  make_sides(small, request.to);
  request.pages = list.data();
  request.page_count = static_cast<int64_t>(list.size());
  const cudaError_t error = shrink_pages(request, nullptr);
  CHECK(error == cudaSuccess, describe(wide) << ": " << cudaGetErrorString(error));
  CUDA(cudaDeviceSynchronize());
  const std::vector<uint8_t> got = (in_place ? from : to).read();
  const size_t pitch = in_place ? from_bytes : to_bytes;
  for (size_t p = 0; p < pages.size(); ++p) {
    std::vector<uint8_t> whole = in_place ? pages[p] : std::vector<uint8_t>(to_bytes, 0xa5);
    std::copy(expected[p].begin(), expected[p].end(), whole.begin());  // the rest stays as it was
    const std::vector<uint8_t> page(got.begin() + pitch * p, got.begin() + pitch * (p + 1));
    const std::string wrong = difference(page, whole);
    CHECK(wrong.empty(), describe(wide) << (in_place ? " in place" : " apart") << " page " << p << ": " << wrong);
  }
}

// The steps on the host and, in device cases, the launch.
void check_pages(bool device, const Setting& wide, const Setting& small, const std::vector<std::vector<uint8_t>>& pages,
                 const std::vector<std::vector<uint8_t>>& expected, bool in_place) {
  (device ? check_launch : check_steps)(wide, small, pages, expected, in_place);
}

Setting setting_of(int d, int heads, int pages, const Kind& keys, const Kind& values, bool fragments) {
  return {d, heads, pages, keys, values, fragments};
}

// All steps of the right shift against pages encoded at the narrower width.
void check_chain(bool device, int d, const reference::Options& keys, const reference::Options& values, bool fragments) {
  for (const int bits : {16, 8, 4}) {
    const Setting wide = setting_of(d, 3, 2, progressive(bits, keys), progressive(bits, values), fragments);
    const Setting small = setting_of(d, 3, 2, progressive(bits / 2, keys), progressive(bits / 2, values), fragments);
    const Layer layer = make_layer(wide, 3);
    const auto expected = encode_layer(small, layer.rows);
    for (const bool in_place : {false, true}) check_pages(device, wide, small, layer.pages, expected, in_place);
  }
}

void check_fragments(bool device) {
  for (const int d : {64, 96, 128, 256}) {
    check_chain(device, d, {}, {}, true);
    check_chain(device, d, {{"grid", 0.0}, {"axis", 1.0}}, {{"grid", 0.0}}, true);
    check_chain(device, d, {{"axis", 1.0}}, {{"grid", 0.0}}, true);
  }
  check_chain(device, 128, {{"grid", 0.0}, {"axis", 0.0}}, {}, true);
}

void check_canonical(bool device) {
  for (const int d : {32, 48, 80, 128, 240, 256}) {
    check_chain(device, d, {}, {}, false);
    check_chain(device, d, {{"grid", 0.0}, {"axis", 0.0}, {"group", 32.0}}, {{"axis", 1.0}, {"group", 32.0}}, false);
    check_chain(device, d, {{"axis", 1.0}, {"group", static_cast<double>(d)}}, {{"axis", 0.0}, {"group", 64.0}}, false);
  }
}

void check_shifts(bool device) {
  for (const bool fragments : {true, false}) {
    for (const int d : {64, 96, 128, 256}) {
      for (const double shift : {1.0, 2.0}) {
        for (const int bits : {16, 8, 4}) {
          const reference::Options options = {{"grid", 0.0}, {"axis", 1.0}, {"shift", shift}};
          const Setting wide = setting_of(d, 2, 2, progressive(bits, options), progressive(bits, options), fragments);
          const Setting small =
              setting_of(d, 2, 2, progressive(bits / 2, options), progressive(bits / 2, options), fragments);
          const Layer layer = make_layer(wide, 4);
          std::vector<std::vector<uint8_t>> expected;
          for (const auto& page : layer.pages) {
            expected.push_back(shifted_page(wide, small, page, static_cast<int>(shift)));
          }
          for (const bool in_place : {false, true}) check_pages(device, wide, small, layer.pages, expected, in_place);
        }
      }
    }
  }
}

void check_moved(bool device) {
  for (const bool fragments : {true, false}) {
    for (const Kind& other : {kHalves, uniform(2), progressive(4)}) {
      const Setting wide = setting_of(128, 3, 2, progressive(16), other, fragments);
      const Setting small = setting_of(128, 3, 2, progressive(8), other, fragments);
      const Layer layer = make_layer(wide, 5);
      const auto expected = encode_layer(small, layer.rows);
      for (const bool in_place : {false, true}) check_pages(device, wide, small, layer.pages, expected, in_place);
      const Setting wide2 = setting_of(128, 3, 2, other, progressive(16), fragments);
      const Setting small2 = setting_of(128, 3, 2, other, progressive(8), fragments);
      const Layer layer2 = make_layer(wide2, 6);
      const auto expected2 = encode_layer(small2, layer2.rows);
      for (const bool in_place : {false, true}) check_pages(device, wide2, small2, layer2.pages, expected2, in_place);
    }
  }
}

HOST_CASE("shrink steps: what the narrower width would have given, fragments") { check_fragments(false); }
DEVICE_CASE("shrink: what the narrower width would have given, fragments") { check_fragments(true); }
HOST_CASE("shrink steps: what the narrower width would have given, canonical") { check_canonical(false); }
DEVICE_CASE("shrink: what the narrower width would have given, canonical") { check_canonical(true); }
HOST_CASE("shrink steps: direct and modified shifts") { check_shifts(false); }
DEVICE_CASE("shrink: direct and modified shifts") { check_shifts(true); }
HOST_CASE("shrink steps: a side that keeps its width is moved") { check_moved(false); }
DEVICE_CASE("shrink: a side that keeps its width is moved") { check_moved(true); }

DEVICE_CASE("shrink: more pages than a launch takes, and lists that make no sense") {
  const Setting wide = setting_of(64, 1, kShrinksPerLaunch + 3, progressive(8), progressive(8), true);
  const Setting small = setting_of(64, 1, kShrinksPerLaunch + 3, progressive(4), progressive(4), true);
  const Layer layer = make_layer(wide, 7);
  const auto expected = encode_layer(small, layer.rows);
  for (const bool in_place : {false, true}) check_launch(wide, small, layer.pages, expected, in_place);

  const Buffer memory(1 << 20);
  const ShrinkPage mixed[2] = {{memory.data(), memory.data()}, {memory.data() + 4096, memory.data() + 65536}};
  ShrinkRequest request = {};
  request.shape = {1, 64};
  make_sides(wide, request.from);
  make_sides(small, request.to);
  request.pages = mixed;
  request.page_count = 2;
  CHECK(shrink_pages(request, nullptr) == cudaErrorInvalidValue, "in place and apart in one list");
  make_sides(wide, request.to);
  make_sides(small, request.from);
  request.page_count = 1;
  CHECK(shrink_pages(request, nullptr) == cudaErrorInvalidValue, "from 4 to 8 bits");
}

}  // namespace
