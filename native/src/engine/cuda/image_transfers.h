// Pages and rows between images in memory of this machine and memory of the device: few large copies, re-ordered by
// kernels on the device.
//
// What comes up is copied whole, as it is, on a stream of its own, while kernels of the engine's stream take checksums
// and re-order what came before. Where the caller's memory is pinned, copies read it in place; else threads bring it to
// memory that is.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/cuda/device_layer.h"
#include "engine/cuda/stream.h"
#include "engine/engine.h"

namespace kvasir::cuda {

// A place for one image on its way.
struct Berth {
  DeviceScratch device;
  PinnedMemory staging;
  PinnedMemory sums;                    // as the device found them
  Event copied;                         // up to `device`
  Event done;                           // what the device had to do with it
  bool used = false, finished = false;  // finished: `done` was recorded
  std::vector<PagesIn::Page> pages;     // that the sums are of

  // Until nothing works on it any more.
  cudaError_t wait();
};

// What one thread at a time works with; kept for the next, because pinned memory is slow to get.
struct TransferRoom {
  static constexpr int kBerths = 3;
  Stream copies;
  Berth berths[kBerths];
};

class ImageTransfers {
 public:
  using Layers = std::function<const DeviceLayer&(const LayerPlan&)>;
  ImageTransfers(int device, const DeviceQueue& queue, Layers layers)
      : device_(device), queue_(queue), layers_(std::move(layers)) {}

  // What the verbs of Engine of these names do. `refused`: as InputRows has it.
  void read_halves(const std::vector<ImageRows>& rows);
  void write_halves(const std::vector<ImageRows>& rows, uint32_t* refused);
  std::vector<uint32_t> read_pages(const std::vector<PageOut>& pages);
  std::unique_ptr<PagesIn> pages_in();

 private:
  friend class CudaPagesIn;
  // Goes back to the others where it ends.
  class Room {
   public:
    explicit Room(ImageTransfers& owner);
    ~Room();
    Room(const Room&) = delete;
    TransferRoom* operator->() const { return room_.get(); }

   private:
    ImageTransfers& owner_;
    std::unique_ptr<TransferRoom> room_;
  };

  // Memory of the device for the image in `berth`, that `stream` may write to.
  void reserve(Berth& berth, size_t bytes, cudaStream_t stream) const;

  const int device_;
  const DeviceQueue& queue_;
  const Layers layers_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<TransferRoom>> rooms_;  // that nobody uses
};

}  // namespace kvasir::cuda
