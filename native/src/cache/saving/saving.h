// The insides of Saving and Restoring, and what of a cache they work with.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cache/layer.h"
#include "cache/memory.h"
#include "cache/saving/identity.h"
#include "cache/saving/image.h"
#include "engine/query_sums.h"
#include "kvasir/saving.h"

namespace kvasir {

struct SavingPlace {
  const std::vector<LayerPlan>& plans;
  Memory& memory;
  Engine& engine;
  const Identity& identity;
  ThreadPool& threads;  // of the cache
};

// A sequence between being saved and being one again.
struct SequenceImage {
  std::vector<LayerImage> layers;
  std::vector<PositionShift> shifts;

  // Memory for the 16-bit rows of all layers.
  void make_rows(const std::vector<LayerPlan>& plans);
  // The vectors of a side table that a block adds; null where it adds none.
  const SideChunk* added(const LayerPlan& plan, int side, int64_t block) const;
  // Names of the side tables: before each of so many blocks, and after the last.
  std::vector<Digest> tables(const std::vector<LayerPlan>& plans, int64_t blocks) const;
};

constexpr int64_t kMostShifts = 1 << 16;  // that a state holds
constexpr int64_t kMostPositionOffset = int64_t{1} << 40;

// What a state has of each layer, in numbers.
struct LayerNumbers {
  int64_t length, dropped_pages, sealed_pages, guesses_from, query_count, unused;
};
static_assert(sizeof(LayerNumbers) == 48, "docs/format.md");

// The name of side tables after a block: of what they were before it, and the vectors that it adds, by its entries for
// them. The same where it adds none.
Digest tables_after(const Digest& before, const std::vector<ImagePart>& parts);

// The most bytes that a block or a state of such a cache has.
int64_t most_block_bytes(const std::vector<LayerPlan>& plans);
int64_t most_state_bytes(const std::vector<LayerPlan>& plans);

struct Saving::Impl {
  Impl(const SavingPlace& place, SequenceImage image);

  int64_t blocks() const { return static_cast<int64_t>(tables_.size()) - 1; }
  int64_t whole_blocks() const;
  int64_t write_block(int64_t block, const uint8_t* chain, uint8_t* out, int64_t capacity);
  int64_t write_state(uint8_t* out, int64_t capacity);
  const SavingPlace place;

 private:
  // Any part but a page; returns its checksum.
  uint32_t fill(const ImagePart& part, int64_t block, uint8_t* out) const;

  SequenceImage image_;
  std::vector<Digest> tables_;   // before each block, and after the last
  std::vector<Digest> digests_;  // of the blocks that were written
  std::vector<bool> written_;
};

struct Restoring::Impl {
  using Attach = std::function<int64_t(std::vector<SequenceLayer>, std::vector<PositionShift>)>;
  Impl(const SavingPlace& place, Attach attach);
  // Behind the blocks of a sequence, whose image ends with the last of them.
  Impl(const SavingPlace& place, Attach attach, SequenceImage behind);

  void add_block(const uint8_t* bytes, int64_t count, const uint8_t* chain);
  void set_state(const uint8_t* bytes, int64_t count);
  int64_t finish();

 private:
  // A page that waits for room: it is there when others have made way.
  struct Waiting {
    int layer;
    size_t index;  // in the image's pages
    const PageShape* shape;
    std::vector<uint32_t> sizes;
    std::vector<uint8_t> bytes;
    int64_t stored;
  };

  const LayerPlan& plan_of(const ImagePart& part) const;
  void take_table(const ImageReader& image, const ImagePart& part, Side side, int64_t block);
  // Pages of a block: of those that any bytes will do for, many together; the others one by one, to be looked into.
  void take_pages(const ImageReader& image, const std::vector<const ImagePart*>& parts);
  const PageShape& check_place(const ImagePart& part);
  bool start_page(const ImagePart& part, const PageShape& shape, std::vector<PagesIn::Page>& pages);
  void take_page(const ImageReader& image, const ImagePart& part, const PageShape& shape);
  void refuse_damage(const std::optional<PagesIn::Damage>& damage) const;
  void check_rows(const ImagePart& part, int64_t rows) const;
  void take_rows(const ImageReader& image, const ImagePart& part, Halves& rows) const;
  // Sizes of the parts of a page that is whole in memory, all of which are as its codecs would have them.
  std::vector<uint32_t> check_page(const LayerPlan& plan, const PageShape& shape, const uint8_t* page, int64_t bytes,
                                   int64_t number) const;
  std::shared_ptr<Page> make_page(const LayerPlan& plan, Pool::Reservation& bytes, const PageShape& shape,
                                  const std::vector<uint32_t>& sizes, const uint8_t* page, int64_t stored,
                                  int64_t number);
  void take_numbers(const ImageReader& image, const ImagePart& part);
  void check_numbers(const LayerPlan& plan, const LayerNumbers& numbers) const;
  void take_shifts(const ImageReader& image, const ImagePart& part);
  void take_layer_state(const ImageReader& image, const std::vector<const ImagePart*>& parts);
  void check_rows_are_there(const std::vector<const ImagePart*>& parts) const;
  void cut_after_blocks();

  const SavingPlace place_;
  const Attach attach_;
  const std::unique_ptr<PagesIn> pages_in_;
  const bool any_bytes_;  // whether any layer has pages for it
  SequenceImage image_;
  std::vector<int64_t> first_pages_;  // number of the first page of each layer; -1: none yet
  std::vector<Waiting> waiting_;
  std::mutex waiting_mutex_;           // pages of a block come from many threads
  std::vector<LayerNumbers> numbers_;  // of the state
  Digest tables_ = {};
  Sha256 digests_;  // of blocks
  int64_t blocks_ = 0;
  bool behind_ = false;  // a sequence of the cache
  bool has_state_ = false;
  bool broken_ = false;
};

}  // namespace kvasir
