// Weights as files hold them, made of any bytes: every type widens and multiplies whatever its blocks say, and sizes
// that are none are refused before a byte is read.
#include <algorithm>

#include "fuzz/input.h"
#include "kvasir/kvasir.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  kvasir::set_threads(1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvasir;
  fuzz::Input input(data, size);
  const auto type = static_cast<WeightType>(input.pick(33));
  const int64_t inputs = input.rarely() ? input.wild() : 32 * (1 + input.pick(16));
  int64_t row = 0;
  if (!fuzz::succeeds([&] { row = weight_row_bytes(type, inputs); }) || inputs > 4096) return 0;
  fuzz::require(inputs > 0 && row > 0, "rows have weights, and weights have bytes");
  const int64_t outputs = 1 + input.pick(5), tokens = 1 + input.pick(7);
  std::vector<uint8_t> weights(static_cast<size_t>(row * outputs));  // of that size to the byte: ASan sees one too many
  for (uint8_t& byte : weights) byte = static_cast<uint8_t>(input.ended() ? 0x3C : input.byte());
  const std::vector<float> in = input.rows(tokens * inputs);
  std::vector<float> out(static_cast<size_t>(tokens * outputs)), rows(static_cast<size_t>(tokens * inputs));
  project(in.data(), weights.data(), type, nullptr, tokens, outputs, inputs, out.data());
  std::vector<int> ids(static_cast<size_t>(tokens));
  bool legal = true;
  for (int& id : ids) {
    id = input.rarely() ? static_cast<int>(input.wild()) : input.pick(static_cast<int>(outputs));
    legal &= id >= 0 && id < outputs;
  }
  const bool done =
      fuzz::succeeds([&] { embed(ids.data(), tokens, weights.data(), type, outputs, inputs, rows.data()); });
  fuzz::require(done == legal, "tokens that are none are refused, and no others");
  return 0;
}
