#include "engine/cuda/image_transfers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "base/thread_pool.h"
#include "engine/cuda/families/family.h"
#include "kernels/cuda/pages/checksum.h"
#include "kernels/cuda/pages/repack.h"
#include "kernels/cuda/rows/rows.h"

namespace kvasir::cuda {
namespace {

constexpr size_t kPiece = size_t{256} << 10;  // that a thread copies

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Whether the device can read it, and write to it, by itself.
bool pinned(const void* memory, size_t bytes) {
  const auto* begin = static_cast<const uint8_t*>(memory);
  for (const uint8_t* at : {begin, begin + bytes - 1}) {
    cudaPointerAttributes attributes;
    if (cudaPointerGetAttributes(&attributes, at) != cudaSuccess || attributes.type != cudaMemoryTypeHost) {
      cudaGetLastError();
      return false;
    }
  }
  return true;
}

void copy_by_all(uint8_t* to, const uint8_t* from, size_t bytes) {
  ThreadPool::current().run(static_cast<int>((bytes + kPiece - 1) / kPiece), [&](int i) {
    const size_t begin = static_cast<size_t>(i) * kPiece;
    std::memcpy(to + begin, from + begin, std::min(kPiece, bytes - begin));
  });
}

// Pages that one launch can take.
struct Alike {
  RepackShape shape;
  std::vector<RepackPage> pages;
};

void add(std::vector<Alike>& list, const RepackShape& shape, const RepackPage& page) {
  if (list.empty() || !(list.back().shape == shape)) list.push_back({shape, {}});
  list.back().pages.push_back(page);
}

}  // namespace

cudaError_t Berth::wait() {
  if (!used) return cudaSuccess;
  const cudaError_t status = (finished ? done : copied).wait();
  used = finished = false;
  return status;
}

ImageTransfers::Room::Room(ImageTransfers& owner) : owner_(owner) {
  {
    std::lock_guard<std::mutex> lock(owner.mutex_);
    if (!owner.rooms_.empty()) {
      room_ = std::move(owner.rooms_.back());
      owner.rooms_.pop_back();
    }
    owner.rooms_.reserve(owner.rooms_.size() + 1);
  }
  if (!room_) room_ = std::make_unique<TransferRoom>();
}

ImageTransfers::Room::~Room() {
  bool good = true;
  for (Berth& berth : room_->berths) good &= berth.wait() == cudaSuccess;
  std::lock_guard<std::mutex> lock(owner_.mutex_);
  if (good && owner_.rooms_.size() < owner_.rooms_.capacity()) owner_.rooms_.push_back(std::move(room_));
}

void ImageTransfers::reserve(Berth& berth, size_t bytes, cudaStream_t stream) const {
  if (berth.device.bytes() >= bytes) return;
  berth.device = DeviceScratch();
  berth.device = queue_.take(bytes);
  if (stream == queue_.stream) return;
  berth.done.order(queue_.stream, stream);  // whoever had that memory before is there
}

void ImageTransfers::read_halves(const std::vector<ImageRows>& rows) {
  const Room room(*this);
  Berth& berth = room->berths[0];
  for (const ImageRows& each : rows) {
    const RowShape shape = layers_(*each.plan).row_shape();
    const size_t of_side = static_cast<size_t>(each.count) * shape.kv_heads * shape.head_dim;
    const size_t bytes = 2 * of_side * sizeof(float);
    reserve(berth, bytes, queue_.stream);
    berth.staging.reserve(bytes);
    auto* floats = berth.device.as<float>();
    const FloatRows out = {{floats, floats + of_side}, shape.head_dim, each.count * shape.head_dim};
    check(cuda::read_rows(shape, each.blocks, 0, each.count, out, queue_.stream), "reading rows");
    queue_.download(berth.staging.as<void>(), floats, bytes, "reading rows");
    each.plan->attention.rows->to_half(berth.staging.as<float>(), ElementType::kFloat32, 2 * of_side, each.halves);
  }
}

void ImageTransfers::write_halves(const std::vector<ImageRows>& rows, uint32_t* refused) {
  if (rows.empty()) return;
  const auto bytes_of = [](const ImageRows& each) {
    return static_cast<size_t>(each.count * each.plan->elements_per_token()) * sizeof(uint16_t);
  };
  std::vector<size_t> places;
  size_t all = 0;
  for (const ImageRows& each : rows) {
    places.push_back(all);
    all += aligned(bytes_of(each));
  }
  const Room room(*this);
  Berth& berth = room->berths[0];
  berth.staging.reserve(all);
  reserve(berth, all, queue_.stream);
  ThreadPool::current().run(static_cast<int>(rows.size()), [&](int i) {
    const auto index = static_cast<size_t>(i);
    std::memcpy(berth.staging.as<uint8_t>() + places[index], rows[index].halves, bytes_of(rows[index]));
  });
  berth.used = berth.finished = true;
  queue_.upload(berth.device.as<void>(), berth.staging.as<void>(), all, "restoring rows");
  for (size_t i = 0; i < rows.size(); ++i) {
    const RowShape shape = layers_(*rows[i].plan).row_shape();
    InputRows input = {};
    input.tokens = rows[i].count;
    input.refused = refused;
    for (size_t side = 0; side < 2; ++side) {
      input.sides[side] = berth.device.as<uint8_t>() + places[i] + side * bytes_of(rows[i]) / 2;
      input.types[side] = ElementType::kFloat16;
      input.token_strides[side] = shape.head_dim;
      input.head_strides[side] = rows[i].count * shape.head_dim;
    }
    check(append_rows(shape, input, 0, rows[i].count, rows[i].blocks, 0, queue_.stream), "restoring rows");
  }
  berth.done.record(queue_.stream);
}

// All of them side by side on the device, and down at once.
std::vector<uint32_t> ImageTransfers::read_pages(const std::vector<PageOut>& pages) {
  std::vector<uint32_t> sums(pages.size());
  std::vector<size_t> there, places;  // pages that the device brings into order
  size_t all = 0;
  for (size_t i = 0; i < pages.size(); ++i) {
    if (layers_(*pages[i].plan).family().read_page(*pages[i].page, pages[i].out)) {
      sums[i] = crc32c(pages[i].out, pages[i].page->bytes());
      continue;
    }
    there.push_back(i);
    places.push_back(all);
    all += aligned(pages[i].page->bytes());
  }
  if (there.empty()) return sums;
  const Room room(*this);
  Berth& berth = room->berths[0];
  reserve(berth, all, queue_.stream);
  berth.staging.reserve(all);
  std::vector<Alike> repacked;
  for (size_t i = 0; i < there.size(); ++i) {
    const PageOut& each = pages[there[i]];
    uint8_t* canonical = berth.device.as<uint8_t>() + places[i];
    if (const auto shape = layers_(*each.plan).family().repack(*each.page->shape)) {
      add(repacked, *shape, {canonical, const_cast<uint8_t*>(each.page->data)});
    } else {
      check(cudaMemcpyAsync(canonical, each.page->data, each.page->bytes(), cudaMemcpyDeviceToDevice, queue_.stream),
            "saving pages");
    }
  }
  for (const Alike& each : repacked) {
    check(unpack_pages(each.shape, each.pages.data(), static_cast<int>(each.pages.size()), queue_.stream),
          "saving pages");
  }
  queue_.download(berth.staging.as<void>(), berth.device.as<void>(), all, "saving pages");
  ThreadPool::current().run(static_cast<int>(there.size()), [&](int i) {
    const auto index = static_cast<size_t>(i);
    const PageOut& each = pages[there[index]];
    sums[there[index]] = crc32c_copy(each.out, berth.staging.as<uint8_t>() + places[index], each.page->bytes());
  });
  return sums;
}

class CudaPagesIn : public PagesIn {
 public:
  explicit CudaPagesIn(ImageTransfers& transfers) : transfers_(transfers), queue_(transfers.queue_), room_(transfers) {}

  void begin(const uint8_t* image, int64_t count) override {
    if (count == 0) return;
    const CurrentDevice current(transfers_.device_);
    berth_ = &room_->berths[next_++ % TransferRoom::kBerths];
    settle(*berth_);
    const auto bytes = static_cast<size_t>(count);
    transfers_.reserve(*berth_, bytes, room_->copies);
    const uint8_t* from = image;
    reading_ = pinned(image, bytes);
    if (!reading_) {
      berth_->staging.reserve(bytes);
      copy_by_all(berth_->staging.as<uint8_t>(), image, bytes);
      from = berth_->staging.as<uint8_t>();
    }
    check(cudaMemcpyAsync(berth_->device.as<void>(), from, bytes, cudaMemcpyHostToDevice, room_->copies), "restoring");
    berth_->copied.record(room_->copies);
    berth_->used = true;
  }

  std::optional<Damage> write(const std::vector<Page>& pages) override {
    if (pages.empty()) return damage_;
    const CurrentDevice current(transfers_.device_);
    Berth& berth = *berth_;
    std::vector<ChecksumPart> parts;
    std::vector<Alike> repacked;
    berth.copied.hold(queue_.stream);
    berth.finished = true;  // the device works on it even if something fails from here on
    for (const Page& each : pages) {
      uint8_t* canonical = berth.device.as<uint8_t>() + each.offset;
      const size_t bytes = each.page.view->bytes();
      parts.push_back({canonical, static_cast<int64_t>(bytes)});
      if (const auto shape = transfers_.layers_(*each.plan).family().repack(*each.page.view->shape)) {
        add(repacked, *shape, {canonical, each.page.data});
      } else {
        check(cudaMemcpyAsync(each.page.data, canonical, bytes, cudaMemcpyDeviceToDevice, queue_.stream), "restoring");
      }
    }
    const size_t sum_bytes = pages.size() * sizeof(uint32_t);
    const DeviceScratch sums = queue_.take(sum_bytes);
    berth.sums.reserve(sum_bytes);
    check(checksum_parts(parts.data(), static_cast<int>(parts.size()), sums.as<uint32_t>(), queue_.stream),
          "taking checksums");
    check(cudaMemcpyAsync(berth.sums.as<void>(), sums.as<void>(), sum_bytes, cudaMemcpyDeviceToHost, queue_.stream),
          "taking checksums");
    for (const Alike& each : repacked) {
      check(pack_pages(each.shape, each.pages.data(), static_cast<int>(each.pages.size()), queue_.stream), "restoring");
    }
    berth.pages = pages;
    berth.done.record(queue_.stream);
    return damage_;
  }

  void end() noexcept override {
    if (!reading_) return;
    reading_ = false;
    berth_->copied.wait();
  }

  std::optional<Damage> finish() override {
    const CurrentDevice current(transfers_.device_);
    for (Berth& berth : room_->berths) settle(berth);
    return damage_;
  }

 private:
  // Waits for what was in it before, and looks at its sums.
  void settle(Berth& berth) {
    check(berth.wait(), "restoring");
    for (size_t i = 0; i < berth.pages.size(); ++i) {
      const Page& each = berth.pages[i];
      if (!damage_ && berth.sums.as<uint32_t>()[i] != each.crc) damage_ = {each.plan->index, each.page.number};
    }
    berth.pages.clear();
  }

  ImageTransfers& transfers_;
  const DeviceQueue& queue_;
  const ImageTransfers::Room room_;
  int next_ = 0;
  Berth* berth_ = nullptr;
  bool reading_ = false;  // the caller's memory
  std::optional<Damage> damage_;
};

std::unique_ptr<PagesIn> ImageTransfers::pages_in() { return std::make_unique<CudaPagesIn>(*this); }

}  // namespace kvasir::cuda
