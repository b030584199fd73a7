// Saving and restoring a sequence, checksums included, next to copies of the same bytes: in memory, and to a file.
//
// Bytes and passes. Saving reads a page and writes it to the image, and reads the image again for its checksum while it
// is in the first cache; 16-bit rows (a tenth of these bytes) are copied once more, since the sequence may go on.
// Restoring reads an image and writes pages, with the checksum taken likewise; rows again have one copy more. A copy
// reads and writes once, by one thread, as cp does; saving and restoring have all threads. Memory is in the same state
// for both: written before where sequences are saved to, never touched where they are restored to, so that both pay for
// the system's faults, and give it back within the time.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "data.h"
#include "options.h"
#include "shrink_bench.h"

namespace bench {

constexpr int kSavedLayers = 32;  // 8B geometry
constexpr int kSavedTokens = 8192;

// The sequence as one piece of memory, image after image.
struct SavedBytes {
  std::vector<uint8_t> bytes;
  std::vector<int64_t> sizes;  // of blocks, then of the state
};

inline double best_seconds(const std::function<void()>& work, int rounds = 7) {
  double best = 1e30;
  for (int i = 0; i < rounds; ++i) {
    const double start = seconds_now();
    work();
    best = std::min(best, seconds_now() - start);
  }
  return best;
}

// Image by image into `room`; each(image, bytes) gets them.
template <class Each>
void save_images(kvasir::Cache& cache, int64_t sequence, std::vector<uint8_t>& room, const Each& each) {
  const std::unique_ptr<kvasir::Saving, void (*)(kvasir::Saving*)> saving(kvasir::Saving::create(cache, sequence),
                                                                          kvasir::Saving::destroy);
  const auto write = [&](const auto& writer) {
    int64_t bytes = writer(room.data(), static_cast<int64_t>(room.size()));
    if (bytes > static_cast<int64_t>(room.size())) {
      room.resize(static_cast<size_t>(bytes));
      bytes = writer(room.data(), bytes);
    }
    each(room.data(), bytes);
  };
  for (int64_t i = 0; i < saving->blocks(); ++i) {
    write([&](uint8_t* out, int64_t capacity) { return saving->write_block(i, nullptr, out, capacity); });
  }
  write([&](uint8_t* out, int64_t capacity) { return saving->write_state(out, capacity); });
}

inline void restore_images(kvasir::Cache& cache, const SavedBytes& saved) {
  const std::unique_ptr<kvasir::Restoring, void (*)(kvasir::Restoring*)> restoring(kvasir::Restoring::create(cache),
                                                                                   kvasir::Restoring::destroy);
  const uint8_t* at = saved.bytes.data();
  for (size_t i = 0; i < saved.sizes.size(); at += saved.sizes[i++]) {
    if (i + 1 < saved.sizes.size()) {
      restoring->add_block(at, saved.sizes[i], nullptr);
    } else {
      restoring->set_state(at, saved.sizes[i]);
    }
  }
  cache.release(restoring->finish());
}

// A file that is gone afterwards, on the disk of the working folder.
class BenchFile {
 public:
  BenchFile() {
    char name[] = "kvasir-bench-XXXXXX";
    file_ = mkstemp(name);
    if (file_ < 0) throw std::runtime_error("no file can be made here");
    unlink(name);
  }
  ~BenchFile() { close(file_); }
  BenchFile(const BenchFile&) = delete;

  void rewind() {
    if (lseek(file_, 0, SEEK_SET) != 0) throw std::runtime_error("cannot seek");
  }
  void write(const uint8_t* bytes, int64_t count) {
    while (count > 0) {
      const ssize_t done = ::write(file_, bytes, static_cast<size_t>(count));
      if (done <= 0) throw std::runtime_error("cannot write");
      bytes += done;
      count -= done;
    }
  }
  void read(uint8_t* bytes, int64_t count) {
    while (count > 0) {
      const ssize_t done = ::read(file_, bytes, static_cast<size_t>(count));
      if (done <= 0) throw std::runtime_error("cannot read");
      bytes += done;
      count -= done;
    }
  }
  void sync() {
    if (fsync(file_) != 0) throw std::runtime_error("cannot reach the disk");
  }

 private:
  int file_;
};

inline void print_saving(const char* what, double bytes, double seconds, double copy_seconds) {
  std::printf("%-24s %6.2f GB/s, %.2f of a copy (%.2f GB/s)\n", what, bytes / seconds / 1e9, copy_seconds / seconds,
              bytes / copy_seconds / 1e9);
}

inline void print_saving_times(const Options& options) {
  const std::unique_ptr<kvasir::CacheConfig, void (*)(kvasir::CacheConfig*)> config(
      kvasir::CacheConfig::create(kSavedLayers), kvasir::CacheConfig::destroy);
  config->set_heads(kvasir::kAllLayers, kQueryHeads, kKvHeads, kHeadDim);
  config->set_codec(kvasir::kAllLayers, kvasir::Side::kKeys, "uniform", 2);
  config->set_codec(kvasir::kAllLayers, kvasir::Side::kValues, "uniform", 2);
  config->set_backend(options.backend.c_str());
  const CachePointer cache(kvasir::Cache::create(*config), kvasir::Cache::destroy);
  const Rows data(kSavedTokens, 0);
  const int64_t id = cache->new_sequence();
  for (int layer = 0; layer < kSavedLayers; ++layer) cache->append(id, layer, data.at(0), data.at(1), kSavedTokens);

  SavedBytes saved;
  std::vector<uint8_t> room(8 << 20);
  save_images(*cache, id, room, [&](const uint8_t* image, int64_t bytes) {
    saved.bytes.insert(saved.bytes.end(), image, image + bytes);
    saved.sizes.push_back(bytes);
  });
  const auto bytes = static_cast<double>(saved.bytes.size());
  std::printf(
      "\nsaved sequence of %d tokens, %d layers, 2 bits: %.0f MB in %zu images; %d threads, copies on one, "
      "as cp\n",
      kSavedTokens, kSavedLayers, bytes / 1e6, saved.sizes.size(), kvasir::threads());

  // To memory of the caller, and from it into memory of the cache: a copy has to go to fresh memory, too.
  std::vector<uint8_t> target(saved.bytes.size(), 1);
  const double copy = best_seconds([&] { std::memcpy(target.data(), saved.bytes.data(), saved.bytes.size()); });
  const double save = best_seconds([&] {
    const std::unique_ptr<kvasir::Saving, void (*)(kvasir::Saving*)> saving(kvasir::Saving::create(*cache, id),
                                                                            kvasir::Saving::destroy);
    uint8_t* at = target.data();
    const auto left = [&] { return static_cast<int64_t>(target.data() + target.size() - at); };
    for (int64_t i = 0; i < saving->blocks(); ++i) at += saving->write_block(i, nullptr, at, left());
    saving->write_state(at, left());
  });
  if (target != saved.bytes) throw std::runtime_error("saved again, the bytes differ");
  print_saving("save to memory", bytes, save, copy);
  const double fresh = best_seconds([&] {
    const std::unique_ptr<uint8_t[]> memory(new uint8_t[saved.bytes.size()]);
    std::memcpy(memory.get(), saved.bytes.data(), saved.bytes.size());
    asm volatile("" ::"r"(memory.get()) : "memory");  // somebody will read it
  });
  const double restore = best_seconds([&] { restore_images(*cache, saved); });
  print_saving("restore from memory", bytes, restore, fresh);

  // To a file and the disk, as cp and sync do it; and from a file that the system has in memory.
  BenchFile file;
  const double file_copy = best_seconds([&] {
    file.rewind();
    for (size_t at = 0; at < saved.bytes.size(); at += room.size()) {
      file.write(saved.bytes.data() + at, static_cast<int64_t>(std::min(room.size(), saved.bytes.size() - at)));
    }
    file.sync();
  });
  const double file_save = best_seconds([&] {
    file.rewind();
    save_images(*cache, id, room, [&](const uint8_t* image, int64_t count) { file.write(image, count); });
    file.sync();
  });
  print_saving("save to a file", bytes, file_save, file_copy);
  const double file_read = best_seconds([&] {
    file.rewind();
    const std::unique_ptr<uint8_t[]> memory(new uint8_t[saved.bytes.size()]);
    file.read(memory.get(), static_cast<int64_t>(saved.bytes.size()));
  });
  const double file_restore = best_seconds([&] {
    file.rewind();
    const std::unique_ptr<kvasir::Restoring, void (*)(kvasir::Restoring*)> restoring(kvasir::Restoring::create(*cache),
                                                                                     kvasir::Restoring::destroy);
    for (size_t i = 0; i < saved.sizes.size(); ++i) {
      file.read(room.data(), saved.sizes[i]);
      if (i + 1 < saved.sizes.size()) {
        restoring->add_block(room.data(), saved.sizes[i], nullptr);
      } else {
        restoring->set_state(room.data(), saved.sizes[i]);
      }
    }
    cache->release(restoring->finish());
  });
  print_saving("restore from a file", bytes, file_restore, file_read);
}

}  // namespace bench
