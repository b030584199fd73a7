#include <algorithm>
#include <string>

#include "base/checks.h"
#include "cache/cache_impl.h"

namespace kvasir {

const Identity& Cache::Impl::identity() {
  std::call_once(identified_, [&] { identity_ = std::make_unique<Identity>(plans_, model_); });
  return *identity_;
}

SavingPlace Cache::Impl::saving_place() {
  return {plans_, memory_, engine(), identity(), own_threads_ ? *own_threads_ : ThreadPool::shared()};
}

SequenceImage Cache::Impl::image_of(int64_t id) {
  const auto sequence = find(id);
  SequenceImage image;
  const auto threads = use_threads();
  {
    std::shared_lock<FairSharedMutex> lock(sequence->mutex);
    std::lock_guard<std::mutex> queries(sequence->queries);
    image.shifts = sequence->shifts;
    for (const LayerPlan& plan : plans_) image.layers.push_back(sequence->layers[plan.index].image(plan, engine()));
    image.make_rows(plans_);
    std::vector<ImageRows> rows;
    for (const LayerPlan& plan : plans_) {
      sequence->layers[plan.index].image_rows(plan, image.layers[static_cast<size_t>(plan.index)], rows);
    }
    engine().read_halves(rows);
  }
  return image;
}

std::unique_ptr<Saving::Impl> Cache::Impl::save(int64_t id) {
  SequenceImage image = image_of(id);
  if (static_cast<int64_t>(image.shifts.size()) > kMostShifts) {
    refuse("a sequence whose positions moved at " + std::to_string(image.shifts.size()) + " places, of " +
           std::to_string(kMostShifts) + " that can be saved");
  }
  return std::make_unique<Saving::Impl>(saving_place(), std::move(image));
}

std::unique_ptr<Restoring::Impl> Cache::Impl::restore(std::optional<int64_t> behind) {
  const auto attach = [this](std::vector<SequenceLayer> layers, std::vector<PositionShift> shifts) {
    const auto sequence = std::make_shared<Sequence>(0);
    sequence->layers = std::move(layers);
    sequence->shifts = std::move(shifts);
    return add(sequence);
  };
  if (behind) return std::make_unique<Restoring::Impl>(saving_place(), attach, image_of(*behind));
  return std::make_unique<Restoring::Impl>(saving_place(), attach);
}

std::shared_ptr<uint8_t> Cache::Impl::image_memory(int64_t bytes) {
  require_positive("bytes", bytes);
  return engine().image_memory(static_cast<size_t>(bytes));
}

ImageMemory* ImageMemory::create(Cache& cache, int64_t bytes) {
  std::shared_ptr<uint8_t> memory = cache.impl_->image_memory(bytes);
  return memory ? new ImageMemory(std::move(memory)) : nullptr;
}
void ImageMemory::destroy(ImageMemory* memory) { delete memory; }

Saving* Saving::create(Cache& cache, int64_t sequence) { return new Saving(cache.impl_->save(sequence)); }
Restoring* Restoring::create(Cache& cache) { return new Restoring(cache.impl_->restore({})); }
Restoring* Restoring::create_behind(Cache& cache, int64_t sequence) {
  return new Restoring(cache.impl_->restore(sequence));
}
const char* Cache::description() { return impl_->identity().text.c_str(); }
void Cache::fingerprint(uint8_t* out) {
  require_pointer("out", out);
  const Digest& digest = impl_->identity().fingerprint;
  std::copy(digest.begin(), digest.end(), out);
}
int64_t Cache::most_block_bytes() const { return kvasir::most_block_bytes(impl_->plans()); }
int64_t Cache::most_state_bytes() const { return kvasir::most_state_bytes(impl_->plans()); }

}  // namespace kvasir
