// Pages as float32 rows: what the reference decodes, bit for bit, from fragments and from canonical pages.
#include "kernels/cuda/rows/unpack.h"

#include <cmath>

#include "kernels/cuda/layout/page_elements.cuh"
#include "kernels/cuda/pages/encode.h"
#include "pages/page_case.h"
#include "reference/uniform_page.h"

namespace {

using namespace kvasir::cuda;
using namespace page_case;

// The pages that the reference wrote, quad by quad on the host.
void check_elements(const Setting& setting, const Layer& layer) {
  SideFormat sides[2];
  make_sides(setting, sides);
  const int d = setting.head_dim;
  for (int s = 0; s < 2; ++s) {
    const ElementSide side = element_side(sides[s]);
    std::vector<float> got(layer.decoded[s].size(), NAN);
    float* out = got.data();
    for (int h = 0; h < setting.kv_heads; ++h) {
      for (const auto& page : layer.pages) {
        for (int p = 0; p < side.parts; ++p) {
          const uint8_t* part =
              page.data() + side.offset + h * side.stride + p * (side.parts > 1 ? side.part.bytes() : 0);
          std::vector<Scale> scales;
          for (int i = 0; i < side.scales; ++i) scales.push_back(scale_at(side, part, i));
          for (int i = 0; i < side.quads() * side.y_size; ++i) {
            const int x = quad_x(side, i / side.y_size), y = i % side.y_size;
            float quad[4];
            if (side.elements == kvasir::Elements::kHalves) {
              decode_halves(side, part, x, y, quad);
            } else {
              decode_codes(side, part, scales.data(), x, y, quad);
            }
            for (int j = 0; j < 4; ++j) {
              const int at = x + quad_step(side, j);
              out[(side.keys ? y : at) * d + p * kValueSpan + (side.keys ? at : y)] = quad[j];
            }
          }
        }
        out += kvasir::kPageTokens * d;
      }
    }
    const std::string wrong = difference(bytes_of(got), bytes_of(layer.decoded[s]));
    CHECK(wrong.empty(), describe(setting) << " side " << s << ": " << wrong);
  }
}

// The same on the device.
void check_attend(bool device, const Setting& setting) {
  const Layer layer = make_layer(setting, 9, true);
  if (!device) return check_elements(setting, layer);
  std::vector<uint8_t> all;
  for (const auto& page : layer.pages) all.insert(all.end(), page.begin(), page.end());
  const Buffer memory(all);
  std::vector<const uint8_t*> pages;
  for (int p = 0; p < setting.pages; ++p) pages.push_back(memory.data() + layer.pages[0].size() * p);
  const int64_t tokens = int64_t{setting.pages} * kvasir::kPageTokens;
  const Buffer keys(layer.decoded[0].size() * 4, 0xff), values(layer.decoded[1].size() * 4, 0xff);
  UnpackRowsRequest request = {};
  request.shape = {setting.kv_heads, setting.head_dim};
  make_sides(setting, request.sides);
  request.pages = pages.data();
  request.page_count = setting.pages;
  request.out = {{keys.as<float>(), values.as<float>()}, setting.head_dim, tokens * setting.head_dim};
  const cudaError_t error = unpack_rows(request, nullptr);
  CHECK(error == cudaSuccess, describe(setting) << ": " << cudaGetErrorString(error));
  CUDA(cudaDeviceSynchronize());
  for (int s = 0; s < 2; ++s) {
    const std::string wrong = difference((s == 0 ? keys : values).read(), bytes_of(layer.decoded[s]));
    CHECK(wrong.empty(), describe(setting) << " side " << s << ": " << wrong);
  }
}

void check_all(bool device) {
  for (const int d : {64, 96, 128, 256}) {
    check_attend(device, {d, 2, 2, kHalves, kHalves, true});
    for (const int bits : {1, 2, 3, 4, 8, 16}) check_attend(device, {d, 2, 2, uniform(bits), uniform(bits), true});
    for (const double grid : {0.0, 1.0}) {
      const reference::Options by_channel = {{"grid", grid}}, by_token = {{"grid", grid}, {"axis", 1.0}};
      for (const int bits : {2, 4, 8, 16}) {
        check_attend(device, {d, 2, 2, progressive(bits, by_channel), progressive(bits, by_token), true});
        check_attend(device, {d, 2, 2, progressive(bits, by_token), uniform(bits, by_channel), true});
      }
    }
  }
  for (const int d : {32, 48, 256}) {
    check_attend(device, {d, 2, 2, kHalves, kHalves, false});
    for (const auto& options : reference::uniform::variants(reference::Side::kKeys, d)) {
      for (const int bits : {1, 3, 4, 16}) {
        check_attend(device, {d, 1, 1, uniform(bits, options), uniform(bits, options), false});
      }
    }
  }
}

HOST_CASE("page elements: bit for bit, fragments and canonical") { check_all(false); }
DEVICE_CASE("unpack rows: bit for bit, fragments and canonical") { check_all(true); }
DEVICE_CASE("unpack rows: more pages than a launch takes") {
  check_attend(true, {64, 1, kPagesPerLaunch + 2, uniform(2), uniform(4), true});
}

}  // namespace
