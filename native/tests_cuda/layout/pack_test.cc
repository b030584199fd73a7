// The device layout: every bit has one owner, and conversion from and to the canonical layout is exact.
#include "kernels/cuda/layout/pack.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "check.h"
#include "reference/f16_page.h"
#include "reference/uniform_page.h"

namespace {

using namespace kvasir::cuda;

constexpr int kDims[] = {64, 96, 128, 256};
constexpr int kWidths[] = {1, 2, 3, 4, 8, kFloat16Bits, kWideBits};

// Bytes of one kv head's side in the canonical layout.
size_t canonical_bytes(reference::Side side, int bits, int d, bool per_token) {
  if (bits == kFloat16Bits) return static_cast<size_t>(2) * kvasir::kPageTokens * d;
  const reference::Options axis = {{"axis", per_token ? 1.0 : 0.0}};
  return reference::uniform::page_bytes(reference::uniform::shape(side, bits == kWideBits ? 16 : bits, d, axis));
}

void mark(std::vector<uint8_t>& owners, size_t byte, int bit, int width, const std::string& where) {
  for (int b = bit; b < bit + width; ++b) {
    const bool fresh = byte < owners.size() && b < 8 && (owners[byte] >> b & 1) == 0;
    if (byte < owners.size()) owners[byte] = static_cast<uint8_t>(owners[byte] | 1 << b);
    if (!fresh) CHECK(fresh, where << " byte " << byte << " bit " << b);
  }
}

void check_part(const PartLayout& part) {
  std::ostringstream text;
  text << part.bits << " bits, " << part.x_size << " x " << part.y_size;
  std::vector<uint8_t> owners(part.bytes(), 0);
  const int parameters = part.y_parameters ? part.y_size : part.x_size;
  for (int i = 0; i < parameters && part.bits != kFloat16Bits; ++i) {
    for (int b = 0; b < 4; ++b) mark(owners, part.parameter_byte(i) + b, 0, 8, text.str() + " parameters");
  }
  for (int x = 0; x < part.x_size; ++x) {
    for (int y = 0; y < part.y_size; ++y) {
      if (part.bits == kFloat16Bits) {
        for (int b = 0; b < 2; ++b) mark(owners, part.float16_byte(x, y) + b, 0, 8, text.str());
        continue;
      }
      for (int plane = 0; plane < (part.bits == 3 || part.bits == kWideBits ? 2 : 1); ++plane) {
        const Place place = part.code_place(plane, x, y);
        const int width = part.bits == kWideBits ? 8 : part.bits == 3 ? 2 - plane : part.bits;
        mark(owners, part.parameter_bytes() + place.byte, place.bit, width, text.str());
      }
    }
  }
  const bool full = std::all_of(owners.begin(), owners.end(), [](uint8_t b) { return b == 0xff; });
  CHECK(full, text.str() << ": some bits belong to nothing");
}

HOST_CASE("layout: every bit of a part belongs to one element") {
  for (const int d : kDims) {
    for (const int bits : kWidths) {
      for (const bool token_keys : {false, true}) {
        const HeadLayout layout = {d, bits, bits, token_keys};
        check_part(layout.key());
        check_part(layout.value());
        CHECK(layout.bytes() % 128 == 0, d << " " << bits);
      }
    }
  }
}

HOST_CASE("layout: every bit of a row tile belongs to one element") {
  for (const int d : kDims) {
    const RowTileLayout layout = {d};
    std::vector<uint8_t> owners(layout.bytes(), 0);
    for (int token = 0; token < kTileSize; ++token) {
      for (int c = 0; c < d; ++c) {
        for (int b = 0; b < 2; ++b) {
          mark(owners, layout.key_byte(token, c) + b, 0, 8, "keys");
          mark(owners, layout.value_byte(token, c) + b, 0, 8, "values");
        }
      }
    }
    CHECK(std::all_of(owners.begin(), owners.end(), [](uint8_t b) { return b == 0xff; }), d);
  }
}

HOST_CASE("pack: pack and unpack are exact, and fill the whole block") {
  std::mt19937 random(1);
  for (const int d : kDims) {
    for (const int key_bits : kWidths) {
      for (const int value_bits : kWidths) {
        const bool token_keys = value_bits == key_bits && key_bits != kFloat16Bits;
        const HeadLayout layout = {d, key_bits, value_bits, token_keys};
        std::vector<uint8_t> keys(canonical_bytes(reference::Side::kKeys, key_bits, d, token_keys));
        std::vector<uint8_t> values(canonical_bytes(reference::Side::kValues, value_bits, d, true));
        CHECK(keys.size() + values.size() == static_cast<size_t>(layout.bytes()),
              d << " " << key_bits << " " << value_bits);
        for (uint8_t& b : keys) b = static_cast<uint8_t>(random());
        for (uint8_t& b : values) b = static_cast<uint8_t>(random());
        std::vector<uint8_t> one(layout.bytes(), 0x00), other(layout.bytes(), 0xff);
        for (auto* block : {&one, &other}) {
          pack_keys(layout, keys.data(), block->data());
          pack_values(layout, values.data(), block->data());
        }
        CHECK(one == other, "bytes that pack leaves alone: " << d << " " << key_bits << " " << value_bits);
        std::vector<uint8_t> keys_back(keys.size(), 0xff), values_back(values.size(), 0xff);
        unpack_keys(layout, one.data(), keys_back.data());
        unpack_values(layout, one.data(), values_back.data());
        CHECK(keys_back == keys && values_back == values, d << " " << key_bits << " " << value_bits);
      }
    }
  }
}

}  // namespace
