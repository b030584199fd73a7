// Times a sequence on its way from memory of this machine to the device and back, checksums included, through the
// public interface: 32 layers of 8 kv heads of 128, 2 bits.
//
//   saving_bench [--contexts 32768] [--rounds 7]
//
// Milliseconds, the best of all rounds, beside one cudaMemcpy of the same bytes from pinned memory. "pinned": the
// images lie in memory that the device reads by itself; "pageable": in any other. The first round, in which the library
// takes its own pinned memory, counts as "first".
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "arguments.h"
#include "device_memory.h"
#include "kvasir/kvasir.h"

namespace {

using kvasir::Cache;
using kvasir::CacheConfig;
using kvasir::Restoring;
using kvasir::Saving;
using kvasir::Side;

constexpr int kLayers = 32, kHeads = 8, kGroup = 4, kDim = 128;

struct Options {
  std::vector<int> contexts = {32768};
  int rounds = 7;
};

// Images side by side; blocks, then the state.
struct Images {
  std::vector<int64_t> sizes;
  uint8_t* pinned = nullptr;
  std::vector<uint8_t> pageable;

  Images() = default;
  Images(const Images&) = delete;
  ~Images() { cudaFreeHost(pinned); }
};

struct Times {
  double first, best;
};

double milliseconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

Times time(int rounds, const std::function<double()>& work) {
  Times times = {work(), 1e30};
  for (int i = 0; i < rounds; ++i) times.best = std::min(times.best, work());
  return times;
}

int64_t save(Cache& cache, int64_t id, uint8_t* out, int64_t room, std::vector<int64_t>* sizes) {
  const std::unique_ptr<Saving, void (*)(Saving*)> saving(Saving::create(cache, id), Saving::destroy);
  int64_t at = 0;
  const auto wrote = [&](int64_t bytes) {
    if (bytes > room - at) throw std::runtime_error("images are larger than expected");
    at += bytes;
    if (sizes) sizes->push_back(bytes);
  };
  for (int64_t i = 0; i < saving->blocks(); ++i) wrote(saving->write_block(i, nullptr, out + at, room - at));
  wrote(saving->write_state(out + at, room - at));
  return at;
}

// Until attention could begin: the release of what was restored is not timed.
double restore(Cache& cache, const std::vector<int64_t>& sizes, const uint8_t* from) {
  int64_t id = 0;
  const double time = milliseconds([&] {
    const std::unique_ptr<Restoring, void (*)(Restoring*)> restoring(Restoring::create(cache), Restoring::destroy);
    for (size_t i = 0; i < sizes.size(); from += sizes[i++]) {
      if (i + 1 < sizes.size()) {
        restoring->add_block(from, sizes[i], nullptr);
      } else {
        restoring->set_state(from, sizes[i]);
      }
    }
    id = restoring->finish();
    CUDA(cudaDeviceSynchronize());
  });
  cache.release(id);
  CUDA(cudaDeviceSynchronize());
  return time;
}

void print(const char* what, const Times& times, double bytes, double copy) {
  std::printf("%-24s %8.2f %8.2f %8.1f %8.2f\n", what, times.first, times.best, bytes / times.best / 1e6,
              copy / times.best);
}

void run(int context, int rounds) {
  const std::unique_ptr<CacheConfig, void (*)(CacheConfig*)> config(CacheConfig::create(kLayers), CacheConfig::destroy);
  config->set_heads(kvasir::kAllLayers, kHeads * kGroup, kHeads, kDim);
  for (Side side : {Side::kKeys, Side::kValues}) config->set_codec(kvasir::kAllLayers, side, "uniform", 2);
  config->set_backend("cuda");
  const std::unique_ptr<Cache, void (*)(Cache*)> cache(Cache::create(*config), Cache::destroy);
  const int64_t id = cache->new_sequence();
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> rows(size_t{4096} * kHeads * kDim);
  for (float& x : rows) x = normal(random);
  for (int done = 0; done < context; done += 4096) {
    for (int layer = 0; layer < kLayers; ++layer) {
      cache->append(id, layer, rows.data(), rows.data(), std::min(4096, context - done));
    }
  }

  Images images;
  const int64_t room = (context / 128 + 1) * cache->most_block_bytes() + cache->most_state_bytes();
  images.pageable.resize(static_cast<size_t>(room));
  const int64_t bytes = save(*cache, id, images.pageable.data(), room, &images.sizes);
  void* memory = nullptr;
  CUDA(cudaHostAlloc(&memory, static_cast<size_t>(bytes), cudaHostAllocDefault));
  images.pinned = static_cast<uint8_t*>(memory);
  std::memcpy(images.pinned, images.pageable.data(), static_cast<size_t>(bytes));
  std::printf("\n%d tokens, 32 layers, 8 kv heads of 128, uniform 2 bits: %.0f MB in %zu images\n", context,
              static_cast<double>(bytes) / 1e6, images.sizes.size());
  std::printf("%-24s %8s %8s %8s %8s\n", "", "first ms", "best ms", "GB/s", "of copy");

  bench::DeviceMemory device;
  auto* target = device.take<uint8_t>(static_cast<size_t>(bytes));
  const auto copy = [&](void* to, const void* from, cudaMemcpyKind kind) {
    return time(rounds,
                [&] { return milliseconds([&] { CUDA(cudaMemcpy(to, from, static_cast<size_t>(bytes), kind)); }); });
  };
  const auto size = static_cast<double>(bytes);
  const Times up = copy(target, images.pinned, cudaMemcpyHostToDevice);
  print("cudaMemcpy up, pinned", up, size, up.best);
  print("restore, pinned", time(rounds, [&] { return restore(*cache, images.sizes, images.pinned); }), size, up.best);
  print("restore, pageable", time(rounds, [&] { return restore(*cache, images.sizes, images.pageable.data()); }), size,
        up.best);
  const Times down = copy(images.pinned, target, cudaMemcpyDeviceToHost);
  print("cudaMemcpy down, pinned", down, size, down.best);
  const auto save_to = [&](uint8_t* out) {
    return time(rounds, [&] { return milliseconds([&] { save(*cache, id, out, bytes, nullptr); }); });
  };
  print("save, pinned", save_to(images.pinned), size, down.best);
  print("save, pageable", save_to(images.pageable.data()), size, down.best);
  if (std::memcmp(images.pinned, images.pageable.data(), static_cast<size_t>(bytes)) != 0) {
    throw std::runtime_error("saved again, the bytes differ");
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  bench::parse(argc, argv, {{"--contexts", &options.contexts}, {"--rounds", &options.rounds}});
  bench::print_command(argc, argv);
  std::printf("%s, %d threads\n", bench::device_name().c_str(), kvasir::threads());
  for (const int context : options.contexts) run(context, options.rounds);
  return 0;
}
