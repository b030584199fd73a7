#include "cache/saving/image.h"

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"

namespace kvasir {
namespace {

constexpr char kMagic[8] = {'k', 'v', 'i', 'm', 'a', 'g', 'e', '\n'};
constexpr uint32_t kVersion = 1;

// Places in a head.
constexpr size_t kVersionAt = 8, kTypeAt = 12, kBytesAt = 16, kNumberAt = 24, kPartsAt = 32, kTableCrcAt = 36,
                 kHeadCrcAt = 40, kFingerprintAt = 64, kChainAt = 96, kBeforeAt = 128, kAfterAt = 160, kEndAt = 192;

template <class T>
void put(uint8_t* at, T number) {
  for (size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<uint8_t>(static_cast<uint64_t>(number) >> (8 * i));
}

template <class T>
T get(const uint8_t* at) {
  uint64_t number = 0;
  for (size_t i = 0; i < sizeof(T); ++i) number |= uint64_t{at[i]} << (8 * i);
  return static_cast<T>(number);
}

// With its own place taken as 0.
uint32_t head_crc(const uint8_t* head) {
  uint8_t copy[kImageHeadBytes];
  std::memcpy(copy, head, sizeof copy);
  put<uint32_t>(copy + kHeadCrcAt, 0);
  return crc32c(copy, sizeof copy);
}

bool all_zero(const uint8_t* from, const uint8_t* to) {
  return std::all_of(from, to, [](uint8_t byte) { return byte == 0; });
}

Digest digest_of(const uint8_t* head_and_table, size_t parts) {
  return Sha256().add(head_and_table, kImageHeadBytes + parts * kImageEntryBytes).finish();
}

ImagePart read_entry(const uint8_t* entry) {
  ImagePart part;
  part.kind = static_cast<PartKind>(get<uint32_t>(entry));
  part.layer = get<int32_t>(entry + 4);
  part.level = get<int32_t>(entry + 8);
  part.crc = get<uint32_t>(entry + 12);
  part.offset = get<int64_t>(entry + 16);
  part.bytes = get<int64_t>(entry + 24);
  return part;
}

}  // namespace

void bad_bytes(BadBytes reason, const std::string& text) {
  throw Error(ErrorCode::kBadBytes, text, "reason=" + std::to_string(static_cast<int>(reason)));
}

void ImageWriter::place() {
  int64_t at = kImageHeadBytes + image_aligned(static_cast<int64_t>(parts_.size()) * kImageEntryBytes);
  for (ImagePart& part : parts_) {
    part.offset = at;
    at = image_aligned(at + part.bytes);
  }
}

int64_t ImageWriter::end_of(size_t part) const { return image_aligned(parts_[part].offset + parts_[part].bytes); }

int64_t ImageWriter::bytes() const { return parts_.empty() ? kImageHeadBytes : end_of(parts_.size() - 1); }

void ImageWriter::seal(size_t part, uint32_t crc, uint8_t* out) {
  ImagePart& each = parts_[part];
  each.crc = crc;
  std::fill(out + each.offset + each.bytes, out + end_of(part), uint8_t{0});
}

Digest ImageWriter::finish(const ImageHead& head, uint8_t* out) const {
  uint8_t* table = out + kImageHeadBytes;
  std::fill(out, parts_.empty() ? table : out + parts_[0].offset, uint8_t{0});
  for (size_t i = 0; i < parts_.size(); ++i) {
    uint8_t* entry = table + i * kImageEntryBytes;
    put(entry, static_cast<uint32_t>(parts_[i].kind));
    put(entry + 4, parts_[i].layer);
    put(entry + 8, parts_[i].level);
    put(entry + 12, parts_[i].crc);
    put(entry + 16, parts_[i].offset);
    put(entry + 24, parts_[i].bytes);
  }
  std::copy(std::begin(kMagic), std::end(kMagic), out);
  put(out + kVersionAt, kVersion);
  put(out + kTypeAt, static_cast<uint32_t>(head.type));
  put(out + kBytesAt, bytes());
  put(out + kNumberAt, head.number);
  put(out + kPartsAt, static_cast<uint32_t>(parts_.size()));
  put(out + kTableCrcAt, crc32c(table, parts_.size() * kImageEntryBytes));
  const auto put_digest = [&](size_t at, const Digest& digest) { std::copy(digest.begin(), digest.end(), out + at); };
  put_digest(kFingerprintAt, head.fingerprint);
  put_digest(kChainAt, head.chain);
  put_digest(kBeforeAt, head.tables_before);
  put_digest(kAfterAt, head.tables_after);
  put(out + kHeadCrcAt, head_crc(out));
  return digest_of(out, parts_.size());
}

ImageReader::ImageReader(ImageType type, const uint8_t* bytes, int64_t count) : bytes_(bytes), count_(count) {
  if (count < kImageHeadBytes) bad_bytes(BadBytes::kTruncated, "an image of " + std::to_string(count) + " bytes");
  // Read once: nobody can change what has been checked.
  std::vector<uint8_t> own(bytes, bytes + kImageHeadBytes);
  if (!std::equal(std::begin(kMagic), std::end(kMagic), own.begin())) {
    bad_bytes(BadBytes::kForeign, "no image: it does not begin as one");
  }
  const auto version = get<uint32_t>(own.data() + kVersionAt);
  if (get<uint32_t>(own.data() + kHeadCrcAt) != head_crc(own.data())) {
    bad_bytes(BadBytes::kChecksum, "the head of an image is damaged");
  }
  if (version != kVersion) {
    bad_bytes(BadBytes::kVersion, "an image of version " + std::to_string(version) +
                                      ", and this library knows version " + std::to_string(kVersion));
  }
  const auto own_type = get<uint32_t>(own.data() + kTypeAt);
  if (own_type != static_cast<uint32_t>(type)) {
    bad_bytes(BadBytes::kInvalid, "an image of type " + std::to_string(own_type) + " in place of type " +
                                      std::to_string(static_cast<uint32_t>(type)));
  }
  const auto whole = get<int64_t>(own.data() + kBytesAt);
  if (whole > count) {
    bad_bytes(BadBytes::kTruncated, std::to_string(count) + " bytes of an image of " + std::to_string(whole));
  }
  const int64_t parts = get<uint32_t>(own.data() + kPartsAt);
  const int64_t table_end = kImageHeadBytes + parts * kImageEntryBytes;  // of 32 bits times 32: no overflow
  if (whole != count || table_end > count) bad_bytes(BadBytes::kInvalid, "an image whose sizes contradict each other");
  own.insert(own.end(), bytes + kImageHeadBytes, bytes + table_end);
  if (get<uint32_t>(own.data() + kTableCrcAt) !=
      crc32c(own.data() + kImageHeadBytes, static_cast<size_t>(parts * kImageEntryBytes))) {
    bad_bytes(BadBytes::kChecksum, "the table of an image is damaged");
  }
  const int64_t first = kImageHeadBytes + image_aligned(parts * kImageEntryBytes);
  const bool padded = first <= count && all_zero(bytes + table_end, bytes + first);
  if (!padded || !all_zero(own.data() + kHeadCrcAt + 4, own.data() + kFingerprintAt) ||
      !all_zero(own.data() + kEndAt, own.data() + kImageHeadBytes)) {
    bad_bytes(BadBytes::kChecksum, "an image whose gaps are not empty");
  }

  head_.type = type;
  head_.number = get<int64_t>(own.data() + kNumberAt);
  const auto get_digest = [&](size_t at) {
    Digest digest;
    std::copy_n(own.data() + at, digest.size(), digest.begin());
    return digest;
  };
  head_.fingerprint = get_digest(kFingerprintAt);
  head_.chain = get_digest(kChainAt);
  head_.tables_before = get_digest(kBeforeAt);
  head_.tables_after = get_digest(kAfterAt);
  digest_ = digest_of(own.data(), static_cast<size_t>(parts));

  int64_t at = first;
  for (int64_t i = 0; i < parts; ++i) {
    const ImagePart part = read_entry(own.data() + kImageHeadBytes + i * kImageEntryBytes);
    if (part.offset != at || part.bytes < 0 || part.bytes > count - at) {
      bad_bytes(BadBytes::kInvalid, "part " + std::to_string(i) + " of an image does not lie in it");
    }
    at = image_aligned(at + part.bytes);
    parts_.push_back(part);
  }
  if (at != count) bad_bytes(BadBytes::kInvalid, "an image that does not end with its last part");
}

void ImageReader::take(const ImagePart& part, uint8_t* out) const {
  if (crc32c_copy(out, bytes_ + part.offset, static_cast<size_t>(part.bytes)) != part.crc ||
      !all_zero(bytes_ + part.offset + part.bytes,
                bytes_ + std::min(image_aligned(part.offset + part.bytes), count_))) {
    bad_bytes(BadBytes::kChecksum, "a part of layer " + std::to_string(part.layer) + " is damaged");
  }
}

std::vector<uint8_t> ImageReader::take(const ImagePart& part) const {
  std::vector<uint8_t> own(static_cast<size_t>(part.bytes));
  take(part, own.data());
  return own;
}

}  // namespace kvasir
