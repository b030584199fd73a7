// CommVQ's codebooks from any sizes and numbers: they are made or refused; what is made encodes any rows that a cache
// accepts, and decodes any codes at all to numbers.
#include <algorithm>
#include <limits>
#include <memory>

#include "fuzz/input.h"
#include "kvasir/kvasir.h"

namespace kvasir::fuzz {
namespace {

// Tables may hold a number that nobody should have put there.
std::vector<float> table(Input& input, int64_t count) {
  std::vector<float> numbers = input.rows(std::clamp<int64_t>(count, 0, 1 << 18));
  if (!numbers.empty() && input.rarely()) numbers[numbers.size() / 2] = input.wild_float();
  return numbers;
}

std::vector<uint8_t> bytes(Input& input, int64_t count) {
  std::vector<uint8_t> all(static_cast<size_t>(count));
  for (uint8_t& byte : all) byte = static_cast<uint8_t>(input.ended() ? 0xA5 : input.byte());
  return all;
}

// float16 bits below infinity: what norms and gains in a page are.
std::vector<uint16_t> halves(Input& input, int64_t count) {
  std::vector<uint16_t> all(static_cast<size_t>(count));
  for (uint16_t& half : all) half = static_cast<uint16_t>(input.pick(0x7C00));
  return all;
}

void require_numbers(const std::vector<float>& rows) {
  for (float number : rows) require(!std::isnan(number), "decoded rows are numbers");
}

void keys(Input& input) {
  const int heads = input.rarely() ? static_cast<int>(input.wild()) : 1 + input.pick(2);
  const int dim = input.rarely() ? static_cast<int>(input.wild()) : 32 + 16 * input.pick(3);
  const int stages = input.rarely() ? static_cast<int>(input.wild()) : 1 + input.pick(3);
  const int entries = input.rarely() ? static_cast<int>(input.wild()) : 16 << input.pick(3);
  const bool small =
      heads > 0 && heads <= 2 && dim > 0 && dim <= 64 && stages > 0 && stages <= 3 && entries > 0 && entries <= 64;
  // The caller promises as many numbers as the sizes say; sizes out of range are refused before one is read.
  const bool legal = heads >= 1 && heads <= 1024 && dim >= 32 && dim <= 256 && dim % 16 == 0 && stages >= 1 &&
                     stages <= 64 && (entries == 16 || entries == 32 || entries == 64);
  if (legal && !small) return;
  const std::vector<float> numbers = table(input, small ? int64_t{heads} * stages * entries * dim : 0);
  const RopePairs pairs = static_cast<RopePairs>(input.rarely() ? static_cast<int>(input.wild()) : input.pick(2));
  KeyCodebook* made = nullptr;
  if (!succeeds([&] { made = KeyCodebook::create(heads, dim, pairs, stages, entries, numbers.data()); })) return;
  require(legal, "sizes out of range are refused");
  const std::unique_ptr<KeyCodebook, void (*)(KeyCodebook*)> codebook(made, KeyCodebook::destroy);
  const int64_t tokens = 1 + input.pick(140);
  std::vector<float> rows = input.rows(tokens * heads * dim);
  std::vector<uint8_t> codes(static_cast<size_t>(codebook->code_bytes(tokens)));
  std::vector<uint16_t> norms(static_cast<size_t>(tokens));
  codebook->encode(rows.data(), tokens, input.pick(3), codes.data(), norms.data());
  codebook->decode(codes.data(), norms.data(), tokens, rows.data());
  require_numbers(rows);
  codes = bytes(input, codebook->code_bytes(tokens));
  norms = halves(input, tokens);
  codebook->decode(codes.data(), norms.data(), tokens, rows.data());
  require_numbers(rows);
}

void values(Input& input) {
  const int width = input.rarely() ? static_cast<int>(input.wild()) : 16 * (1 + input.pick(4));
  const int codes = input.rarely() ? static_cast<int>(input.wild()) : 16 * (1 + input.pick(4));
  const bool legal =
      width >= 16 && width <= 65536 && width % 16 == 0 && codes >= 16 && codes <= 16384 && codes % 16 == 0;
  if (legal && int64_t{width} * codes > 4096) return;
  const std::vector<float> numbers = table(input, legal ? int64_t{width} * codes : 0);
  const std::vector<float> thresholds = table(input, legal ? codes : 0);
  ValueCodebook* made = nullptr;
  const float* limits = input.flip() ? thresholds.data() : nullptr;
  if (!succeeds([&] { made = ValueCodebook::create(width, codes, numbers.data(), limits); })) return;
  require(legal, "sizes out of range are refused");
  const std::unique_ptr<ValueCodebook, void (*)(ValueCodebook*)> codebook(made, ValueCodebook::destroy);
  const int64_t tokens = 1 + input.pick(20);
  std::vector<float> rows = input.rows(tokens * width);
  std::vector<uint8_t> bits(static_cast<size_t>(codebook->bit_bytes(tokens)));
  std::vector<uint16_t> gains(static_cast<size_t>(tokens));
  codebook->encode(rows.data(), tokens, bits.data(), gains.data());
  bits = bytes(input, codebook->bit_bytes(tokens));
  codebook->refine(rows.data(), tokens, input.pick(5), bits.data(), gains.data());
  codebook->decode(bits.data(), gains.data(), tokens, rows.data());
  require_numbers(rows);
}

}  // namespace
}  // namespace kvasir::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  kvasir::set_threads(1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvasir::fuzz::Input input(data, size);
  if (input.flip()) {
    kvasir::fuzz::keys(input);
  } else {
    kvasir::fuzz::values(input);
  }
  return 0;
}
