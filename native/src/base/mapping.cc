#include "base/mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "kvasir/error.h"

namespace kvasir {
namespace {

size_t whole_pages(size_t bytes) {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

Mapping::Mapping(size_t bytes) : bytes_(whole_pages(bytes)) {
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    bytes_ = 0;
    throw Error(ErrorCode::kOutOfMemory, "no memory for " + std::to_string(bytes) + " bytes");
  }
  data_ = static_cast<uint8_t*>(memory);
}

Mapping::~Mapping() {
  if (data_) munmap(data_, bytes_);
}

void Mapping::shrink(size_t bytes) noexcept {
  const size_t kept = whole_pages(bytes);
  if (kept < bytes_) madvise(data_ + kept, bytes_ - kept, MADV_DONTNEED);
}

}  // namespace kvasir
