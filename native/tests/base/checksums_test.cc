// CRC-32C and SHA-256 against published values, and the fast way against the plain one.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/sha256.h"
#include "support/data.h"
#include "support/doctest.h"

namespace {

// Bit by bit, from the definition.
uint32_t plain_crc(const uint8_t* bytes, size_t count) {
  uint32_t crc = 0xFFFFFFFFu;
  for (size_t i = 0; i < count; ++i) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
  }
  return ~crc;
}

std::string sha(const std::string& text) {
  return kvasir::hex(kvasir::Sha256().add(text.data(), text.size()).finish());
}

}  // namespace

TEST_CASE("CRC-32C of known texts") {
  CHECK(kvasir::crc32c("123456789", 9) == 0xE3069283u);
  const std::vector<uint8_t> zeros(32), ones(32, 0xFF);  // RFC 3720, B.4
  CHECK(kvasir::crc32c(zeros.data(), 32) == 0x8A9136AAu);
  CHECK(kvasir::crc32c(ones.data(), 32) == 0x62A8AB43u);
  CHECK(kvasir::crc32c(nullptr, 0) == 0u);
}

// Lengths around every turn of the ways: words, folds of 128 bytes, streams of 2048, pieces of 24 KiB.
TEST_CASE("CRC-32C in every way that the machine has, and bit by bit, whole, in pieces and as a copy") {
  support::Random random(5);
  std::vector<uint8_t> bytes(60000);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next());
  std::vector<size_t> counts = {2047, 6143, 6144, 6145, 12289, 24576, 24577, 59990};
  for (size_t count = 1; count < 20; ++count) counts.push_back(count);
  for (size_t turns = 1; turns < 5; ++turns) {
    for (const size_t more : {0u, 1u, 15u, 16u, 64u, 127u}) counts.push_back(128 * turns + more);
  }
  CHECK(std::string(kvasir::crc32c_ways().back().name) == "tables");
  for (const kvasir::Crc32cWay& way : kvasir::crc32c_ways()) {
    CAPTURE(way.name);
    for (const size_t count : counts) {
      for (const size_t first : {0u, 1u, 5u}) {
        CAPTURE(count);
        const uint32_t expected = plain_crc(bytes.data() + first, count);
        CHECK(way.sum(bytes.data() + first, count, 0) == expected);
        std::vector<uint8_t> copy(count + 2, 7);
        CHECK(way.copy(copy.data() + 1, bytes.data() + first, count, 0) == expected);
        CHECK(std::equal(copy.begin() + 1, copy.end() - 1, bytes.begin() + static_cast<std::ptrdiff_t>(first)));
        CHECK((copy.front() == 7 && copy.back() == 7));
        const size_t cut = static_cast<size_t>(random.below(static_cast<int>(count)));
        const uint32_t before = plain_crc(bytes.data() + first, cut);
        CHECK(way.sum(bytes.data() + first + cut, count - cut, before) == expected);
        CHECK(way.copy(copy.data(), bytes.data() + first + cut, count - cut, before) == expected);
      }
    }
  }
  CHECK(kvasir::crc32c(bytes.data(), 1000, 3) == kvasir::crc32c_ways().front().sum(bytes.data(), 1000, 3));
  CHECK(kvasir::crc32c_copy(nullptr, nullptr, 0, 3) == 3u);
}

TEST_CASE("SHA-256 of known texts") {
  CHECK(sha("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  kvasir::Sha256 pieces;
  for (int i = 0; i < 1000; ++i) pieces.add(std::string(1000, 'a').data(), 1000);
  CHECK(kvasir::hex(pieces.finish()) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}
