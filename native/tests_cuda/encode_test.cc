// Sealing: pages from the device are those that docs/format.md prescribes, byte for byte, and nothing else is written.
#include "kernels/cuda/encode.h"

#include "page_case.h"
#include "reference/half.h"
#include "reference/uniform_page.h"

namespace {

using namespace kvasir::cuda;
using namespace page_case;

constexpr int kFirstRow = 5, kRowsAfter = 7, kGuard = 256;

std::vector<uint16_t> staged(const std::vector<float>& rows, const Setting& setting) {
  const int64_t tokens = int64_t{setting.pages} * kTokensPerPage;
  std::vector<uint16_t> staging;
  for (int h = 0; h < setting.kv_heads; ++h) {
    staging.resize(staging.size() + kFirstRow * setting.head_dim, 0x7bff);  // rows around are far from the pages' own
    for (int64_t i = 0; i < tokens * setting.head_dim; ++i) {
      staging.push_back(reference::half_nearest(rows[h * tokens * setting.head_dim + i]));
    }
    staging.resize(staging.size() + kRowsAfter * setting.head_dim, 0xfbff);
  }
  return staging;
}

void check_encode(const Setting& setting) {
  const Layer layer = make_layer(setting, 1);
  const Buffer keys(bytes_of(staged(layer.rows[0], setting))), values(bytes_of(staged(layer.rows[1], setting)));
  const size_t bytes = layer.pages[0].size() + kGuard;
  const Buffer memory(bytes * setting.pages);
  std::vector<uint8_t*> pages;
  for (int p = 0; p < setting.pages; ++p) pages.push_back(memory.data() + bytes * p);

  EncodeRequest request = {};
  request.shape = {setting.kv_heads, setting.head_dim};
  make_sides(setting, request.sides);
  request.staging = {{keys.as<uint16_t>(), values.as<uint16_t>()},
                     kFirstRow + setting.pages * kTokensPerPage + kRowsAfter};
  request.first_row = kFirstRow;
  request.pages = pages.data();
  request.page_count = setting.pages;
  const cudaError_t error = encode_pages(request, nullptr);
  CHECK(error == cudaSuccess, describe(setting) << ": " << cudaGetErrorString(error));
  CUDA(cudaDeviceSynchronize());
  const std::vector<uint8_t> got = memory.read();
  for (int p = 0; p < setting.pages; ++p) {
    std::vector<uint8_t> expected = layer.pages[p];
    expected.resize(bytes, 0xa5);
    const std::vector<uint8_t> page(got.begin() + bytes * p, got.begin() + bytes * (p + 1));
    const std::string wrong = difference(page, expected);
    CHECK(wrong.empty(), describe(setting) << " page " << p << ": " << wrong);
  }
}

DEVICE_CASE("encode: fragments of every codec, width and head dim") {
  for (const int d : {64, 96, 128, 256}) {
    check_encode({d, 3, 2, kHalves, kHalves, true});
    for (const int bits : {1, 2, 3, 4, 8, 16}) check_encode({d, 3, 2, uniform(bits), uniform(bits), true});
    for (const int bits : {2, 4, 8, 16}) check_encode({d, 3, 2, progressive(bits), progressive(bits), true});
    check_encode({d, 2, 1, uniform(3), progressive(4), true});
    check_encode({d, 1, 1, kHalves, uniform(2), true});
    check_encode({d, 1, 1, progressive(8, {{"axis", 0.0}}), kHalves, true});
  }
}

DEVICE_CASE("encode: canonical pages of every codec, width, axis, group and head dim") {
  for (const int d : {32, 48, 80, 128, 240, 256}) {
    check_encode({d, 2, 2, kHalves, kHalves, false});
    for (const auto& options : reference::uniform::variants(reference::Side::kKeys, d)) {
      for (const int bits : {1, 2, 3, 4, 8, 16}) {
        check_encode({d, 1, 1, uniform(bits, options), uniform(bits, options), false});
      }
      for (const int bits : {2, 4, 8, 16}) {
        check_encode({d, 1, 1, progressive(bits, options), progressive(bits, options), false});
      }
    }
  }
}

DEVICE_CASE("encode: more pages than a launch takes") {
  check_encode({64, 1, kPagesPerLaunch + 3, uniform(2), uniform(4), true});
  check_encode({32, 1, kPagesPerLaunch + 3, uniform(2), uniform(4), false});
}

}  // namespace
