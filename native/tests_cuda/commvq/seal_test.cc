// CommVQ's parts sealed on the device: the host's byte for byte, but for networks, whose choices may differ where
// logits are as good as equal. Judges in double look at both.
#include "kernels/cuda/commvq/seal.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>

#include "check.h"
#include "commvq/seal_case.h"
#include "kernels/cuda/commvq/value_parts.h"
#include "pages/page_case.h"
#include "reference/half.h"

namespace {

using commvq_seal::Scene;
using commvq_seal::Setting;
using kvasir::RopePairs;
using namespace kvasir::cuda;
using page_case::Buffer;
using page_case::bytes_of;

const Setting kSettings[] = {
    {2, 64, RopePairs::kHalves, 5, 64, 0, 128, 0, 0, 2},
    {2, 64, RopePairs::kHalves, 5, 64, 3, 128, 0, 0, 2, true},
    {3, 80, RopePairs::kNeighbours, 4, 32, 1, 240, 48, 0, 1},
    {1, 256, RopePairs::kHalves, 7, 16, 2, 272, 33, 16, 3},
    {8, 32, RopePairs::kNeighbours, 3, 64, 100, 256, 100, 1000, 1},
    {1, 32, RopePairs::kHalves, 1, 64, 5, 16, 0, 0, 1},
    {2, 128, RopePairs::kHalves, 11, 64, 1, 1040, 0, 0, 1},
    {1, 240, RopePairs::kHalves, 2, 64, 1, 64, 0, 0, 1},  // keys that need more shared memory than some devices have
};

// The device's parts of both sides, by page; none where blocks have too little shared memory.
class Sealed {
 public:
  explicit Sealed(const Scene& scene) : scene_(scene), s_(scene.setting) {
    seal_keys();
    seal_values();
  }
  bool has(int side) const { return !parts_[side].empty(); }
  std::vector<uint8_t> part(int side, int page) const { return parts_[side][static_cast<size_t>(page)]; }

 private:
  static constexpr int kTail = 21;  // rows of the staging that are in no page

  std::vector<uint16_t> staging(int side) const {
    const size_t rows = static_cast<size_t>(scene_.tokens()) + kTail, d = s_.head_dim, width = s_.width();
    std::vector<uint16_t> halves(rows * width, 0x7e00);
    for (size_t i = 0; i < scene_.rows[side].size(); ++i) {
      const size_t token = i / width, head = i % width / d;
      halves[(head * rows + token) * d + i % d] = reference::half_nearest(scene_.rows[side][i]);
    }
    return halves;
  }

  // seal(request) between guards; `bytes` of a part, scratch for all of them. It must be refused where it does not fit.
  template <class Seal>
  void run(int side, bool fits, size_t bytes, size_t scratch_bytes, const Seal& seal) {
    const Buffer rows(bytes_of(staging(side))), scratch(scratch_bytes + 64);
    std::vector<std::unique_ptr<Buffer>> memory;
    std::vector<uint8_t*> addresses;
    for (int page = 0; page < s_.pages; ++page) {
      memory.push_back(std::make_unique<Buffer>(bytes + 64));
      addresses.push_back(memory.back()->data());
    }
    CommVqSealRequest request = {};
    request.staging.sides[side] = rows.as<uint16_t>();
    request.staging.rows = scene_.tokens() + kTail;
    request.parts = addresses.data();
    request.page_count = s_.pages;
    request.scratch = scratch.data();
    if (!fits) {
      CHECK(seal(request) == cudaErrorInvalidValue, s_.describe() << ": side " << side);
      CHECK(cudaGetLastError() == cudaSuccess, s_.describe() << ": side " << side);
      return;
    }
    CUDA(seal(request));
    CUDA(cudaDeviceSynchronize());
    const auto beyond = [](const std::vector<uint8_t>& all, size_t end) {
      return std::vector<uint8_t>(all.begin() + static_cast<int64_t>(end), all.end()) == std::vector<uint8_t>(64, 0xa5);
    };
    CHECK(beyond(scratch.read(), scratch_bytes), s_.describe() << ": written behind the scratch of side " << side);
    for (const auto& each : memory) {
      std::vector<uint8_t> all = each->read();
      CHECK(beyond(all, bytes), s_.describe() << ": written behind a part of side " << side);
      all.resize(bytes);
      parts_[side].push_back(all);
    }
  }

  void seal_keys() {
    const auto& model = scene_.keys();
    const std::vector<uint16_t> tables(model.tables, model.tables + s_.width() * s_.stages * s_.entries);
    const Buffer there(bytes_of(tables));
    KeySearch search = {model.page, model.head_dim, model.pairs, model.refinements, there.as<uint16_t>(), nullptr};
    const Buffer cross(key_cross_bytes(search));
    CUDA(key_cross(search, cross.as<float>(), nullptr));
    search.cross = cross.as<float>();
    run(0, seals_commvq_keys(search), model.page.bytes(), key_scratch_bytes(search, s_.pages),
        [&](const CommVqSealRequest& request) { return seal_commvq_keys(search, request, nullptr); });
  }

  void seal_values() {
    const auto& model = scene_.values();
    const std::vector<uint16_t> tables(model.tables, model.tables + s_.width() * s_.codes);
    const Buffer there(bytes_of(tables));
    const Buffer thresholds(bytes_of(std::vector<float>(model.thresholds, model.thresholds + s_.codes)));
    ValueSearch search = {};
    search.page = model.page;
    search.kv_heads = s_.kv_heads;
    search.head_dim = s_.head_dim;
    search.flips = model.flips;
    search.tables = there.as<uint16_t>();
    search.thresholds = thresholds.as<float>();
    std::vector<std::unique_ptr<Buffer>> weights;
    // Rows of `from`, each followed by zeros.
    const auto upload = [&](const float* from, int rows, int columns, int stride, int all_rows) {
      std::vector<float> padded(static_cast<size_t>(all_rows) * stride, 0.0f);
      for (int r = 0; r < rows; ++r) std::memcpy(&padded[r * stride], from + r * columns, sizeof(float) * columns);
      weights.push_back(std::make_unique<Buffer>(bytes_of(padded)));
      return weights.back()->as<float>();
    };
    if (model.network) {
      const int width = s_.width(), hidden = s_.hidden, padded = (hidden + 15) / 16 * 16, logits = 2 * s_.codes;
      const auto& network = *model.network;
      search.has_network = true;
      search.network = {padded,
                        upload(network.scale, 1, width, width, 1),
                        upload(network.norm_weight, 1, width, width, 1),
                        upload(network.norm_bias, 1, width, width, 1),
                        upload(network.first_weight, hidden, width, width, padded),
                        upload(network.first_bias, 1, hidden, padded, 1),
                        upload(network.second_weight, logits, hidden, padded, logits),
                        upload(network.second_bias, 1, logits, logits, 1)};
    }
    const Buffer gram(value_gram_bytes(search));
    CUDA(value_gram(search, gram.as<float>(), nullptr));
    search.gram = gram.as<float>();
    run(1, seals_commvq_values(search), model.page.bytes(), value_scratch_bytes(search, s_.pages),
        [&](const CommVqSealRequest& request) { return seal_commvq_values(search, request, nullptr); });
  }

  const Scene& scene_;
  const Setting& s_;
  std::vector<std::vector<uint8_t>> parts_[2];
};

int different_bits(const std::vector<uint8_t>& one, const std::vector<uint8_t>& other) {
  int count = 0;
  for (size_t i = 256; i < one.size(); ++i) count += __builtin_popcount(one[i] ^ other[i]);
  return count;
}

std::string judged(const Scene& scene, int side, int page, const std::vector<uint8_t>& part) {
  return side == 0 ? scene.judge_keys(page, part) : scene.judge_values(page, part);
}

HOST_CASE("commvq sealing: the judges accept the host's parts, and no others") {
  for (const Setting& s : kSettings) {
    const Scene scene(s);
    for (int page = 0; page < s.pages; ++page) {
      for (int side = 0; side < 2; ++side) {
        const std::string complaint = judged(scene, side, page, scene.host_part(side, page));
        CHECK(complaint.empty(), s.describe() << " side " << side << " page " << page << ": " << complaint);
      }
    }
  }
  const Scene scene(kSettings[0]);
  const auto refused = [&](int side, size_t byte, int change) {
    std::vector<uint8_t> part = scene.host_part(side, 1);
    part[byte] = static_cast<uint8_t>(part[byte] ^ change);
    return !judged(scene, side, 1, part).empty();
  };
  CHECK(refused(0, 256 + 300, 1), "a code");
  CHECK(refused(0, 2 * 40, 2), "a norm");
  CHECK(refused(1, 256 + 64 * 3 + 20, 1), "a bit");
  CHECK(refused(1, 2 * 40, 2), "a gain");
}

DEVICE_CASE("commvq sealing: parts of the device are those of the host") {
  for (const Setting& s : kSettings) {
    const Scene scene(s);
    const Sealed sealed(scene);
    double errors[2] = {};
    int different = 0;
    for (int page = 0; page < s.pages; ++page) {
      for (int side = 0; side < 2; ++side) {
        if (!sealed.has(side)) continue;
        const std::string complaint = judged(scene, side, page, sealed.part(side, page));
        CHECK(complaint.empty(), s.describe() << " side " << side << " page " << page << ": " << complaint);
        if (side == 1 && s.hidden > 0) continue;
        const std::string difference = page_case::difference(sealed.part(side, page), scene.host_part(side, page));
        CHECK(difference.empty(), s.describe() << " side " << side << " page " << page << ": " << difference);
      }
      const std::vector<uint8_t> values = scene.host_part(1, page);
      different += different_bits(sealed.part(1, page), values);
      errors[0] += scene.value_error(page, values);
      errors[1] += scene.value_error(page, sealed.part(1, page));
    }
    // A token whose logits are equal up to rounding may have other bits, and end in another place.
    CHECK(different <= s.pages * s.codes / 8, s.describe() << ": " << different << " other bits");
    CHECK(errors[1] <= errors[0] * (1 + 1e-3), s.describe() << ": error " << errors[1] << ", not " << errors[0]);
  }
}

// As many as there can be, of one token.
DEVICE_CASE("commvq sealing: bits of more codes than a block has shared memory for are refused") {
  ValueSearch search = {};
  search.page.codes = kMaxValueCodes;
  CHECK(seals_commvq_values(search), "without flips there is nothing to keep");
  search.flips = 1;
  if (seals_commvq_values(search)) return;
  CHECK(flip_bits(search, 128, {}, nullptr) == cudaErrorInvalidValue, "flips");
  CHECK(cudaGetLastError() == cudaSuccess, "flips");
}

DEVICE_CASE("commvq sealing: refinements lower the error") {
  Setting setting = {2, 64, RopePairs::kHalves, 6, 32, 0, 64, 0, 0, 1};
  double last = 1e300;
  for (const int refinements : {0, 1, 4}) {
    setting.refinements = refinements;
    const Scene scene(setting);
    const double error = scene.key_error(0, Sealed(scene).part(0, 0));
    CHECK(error < last, refinements << " refinements: " << error << " after " << last);
    last = error;
  }
}

}  // namespace
