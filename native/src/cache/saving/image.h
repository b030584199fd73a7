// Images: blocks and states of sequences as bytes, in the container of docs/format.md ("Images"). Nothing in here knows
// what the parts mean.
//
// Whoever reads one has checked everything by the time it sees it: the head and the table of parts by their checksums
// and against the number of bytes that there are, each part by its own when it is taken.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "kvasir/error.h"

namespace kvasir {

[[noreturn]] void bad_bytes(BadBytes reason, const std::string& text);

// The numbers of this page are those of docs/format.md.
enum class ImageType : uint32_t { kBlock = 2, kState = 3 };
enum class PartKind : uint32_t {
  kKeyTable = 1,
  kValueTable = 2,
  kPage = 3,
  kSinks = 4,
  kLayers = 5,
  kShifts = 6,
  kWindow = 7,
  kQueries = 8,
};

constexpr int64_t kImageHeadBytes = 256;
constexpr int64_t kImageEntryBytes = 32;
constexpr int64_t kImageAlignment = 64;
constexpr int64_t image_aligned(int64_t bytes) {
  return (bytes + kImageAlignment - 1) / kImageAlignment * kImageAlignment;
}

// What a head says beside sizes and checksums.
struct ImageHead {
  ImageType type = ImageType::kBlock;
  int64_t number = 0;  // of the block; of a state, how many blocks there are
  Digest fingerprint = {};
  Digest chain = {};  // of a state: the digest of the heads and tables of its blocks, in order
  Digest tables_before = {}, tables_after = {};
};

struct ImagePart {
  PartKind kind = PartKind::kPage;
  int layer = 0;
  int level = 0;
  uint32_t crc = 0;
  int64_t offset = 0;
  int64_t bytes = 0;
};

// Parts are added, then get their places; then each is filled in memory of bytes() bytes and sealed; then comes the
// head.
class ImageWriter {
 public:
  void add(PartKind kind, int layer, int level, int64_t bytes) { parts_.push_back({kind, layer, level, 0, 0, bytes}); }
  void place();
  const std::vector<ImagePart>& parts() const { return parts_; }
  int64_t bytes() const;

  // The part is at its place in `out`, and this is its checksum. Clears up to the next one.
  void seal(size_t part, uint32_t crc, uint8_t* out);
  // Returns the digest of head and table.
  Digest finish(const ImageHead& head, uint8_t* out) const;

 private:
  int64_t end_of(size_t part) const;
  std::vector<ImagePart> parts_;
};

class ImageReader {
 public:
  // `bytes` stay the caller's. Throws kBadBytes.
  ImageReader(ImageType type, const uint8_t* bytes, int64_t count);

  const ImageHead& head() const { return head_; }
  const std::vector<ImagePart>& parts() const { return parts_; }
  // Of head and table.
  const Digest& digest() const { return digest_; }

  // A copy of the part, whose checksum, and what pads it, have been checked. `out` has room for its bytes.
  void take(const ImagePart& part, uint8_t* out) const;
  std::vector<uint8_t> take(const ImagePart& part) const;

 private:
  const uint8_t* const bytes_;
  const int64_t count_;
  ImageHead head_;
  std::vector<ImagePart> parts_;
  Digest digest_;
};

}  // namespace kvasir
