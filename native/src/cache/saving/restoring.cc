// The way back. Every number that is read from bytes is compared with what a cache of this kind could have written
// before it decides anything; memory that is taken for it is bounded by the cache's own shapes and by the bytes that
// are there.
#include <algorithm>
#include <cfloat>
#include <cstring>
#include <string>
#include <utility>

#include "base/checks.h"
#include "base/scratch.h"
#include "cache/saving/saving.h"
#include "engine/query_sums.h"

namespace kvasir {
namespace {

[[noreturn]] void invalid(int layer, const std::string& text) {
  bad_bytes(BadBytes::kInvalid, "layer " + std::to_string(layer) + " " + text);
}

// Whether all are finite, or at most so large: by their bits. Counts, so that it runs many at a time.
constexpr uint16_t kFinite = 0x7BFF, kAppendable = 0x77FF;  // kMaxMagnitude
static_assert(kMaxMagnitude == 32752.0f, "the bits above");
void require_at_most(uint16_t most, int layer, const uint16_t* halves, size_t count) {
  size_t larger = 0;
  for (size_t i = 0; i < count; ++i) larger += static_cast<uint16_t>(halves[i] & 0x7FFF) > most;
  if (larger > 0) invalid(layer, "has 16-bit rows or vectors that no cache has");
}

// Sums and means of magnitudes. A sum may have grown to infinity, a mean never does.
void require_magnitudes(const LayerPlan& plan, std::vector<uint8_t>& queries) {
  const QuerySums all = QuerySums::at(plan.attention, queries.data());
  const int64_t count = QuerySums::channels(plan.attention);
  if (std::all_of(all.sums, all.sums + count, [](double sum) { return sum >= 0.0; }) &&
      std::all_of(all.known, all.known + count, [](float mean) { return mean >= 0.0f && mean <= FLT_MAX; })) {
    return;
  }
  invalid(plan.index, "has statistics of queries that no cache has");
}

// Whether any bytes will do for such pages: nothing in them says where to look.
bool takes_any_bytes(const LayerPlan& plan, const PageShape& shape) {
  return !shape.varies() && !plan.codecs[0]->valid && !plan.codecs[1]->valid;
}

// A sliding window leaves pages behind, but none that the newest token of so many sees.
void require_seen_pages(const LayerPlan& plan, int64_t length, int64_t dropped_pages) {
  const int64_t sliding = plan.attention.sliding_window;
  const int64_t seen = sliding == 0 ? 0 : std::max<int64_t>(0, length - sliding);
  if (dropped_pages == 0 || plan.sinks + dropped_pages * kPageTokens <= std::max<int64_t>(plan.sinks, seen)) return;
  bad_bytes(BadBytes::kIncomplete, "layer " + std::to_string(plan.index) + " lacks pages that the newest token sees");
}

// As appends leave pages behind that the sliding window of a layer has passed.
void drop_unseen(const LayerPlan& plan, LayerImage& layer) {
  if (plan.attention.sliding_window == 0) return;
  const int64_t unseen = (layer.length - plan.attention.sliding_window - kPageTokens - plan.sinks) / kPageTokens;
  const int64_t drop = std::min<int64_t>(unseen - layer.dropped_pages, static_cast<int64_t>(layer.pages.size()));
  if (drop <= 0) return;
  layer.pages.erase(layer.pages.begin(), layer.pages.begin() + drop);
  layer.dropped_pages += drop;
}

// As long as a block is being added.
class ImageInUse {
 public:
  ImageInUse(PagesIn& pages, const uint8_t* image, int64_t bytes) : pages_(pages) { pages.begin(image, bytes); }
  ~ImageInUse() { pages_.end(); }
  ImageInUse(const ImageInUse&) = delete;

 private:
  PagesIn& pages_;
};

}  // namespace

Restoring::Impl::Impl(const SavingPlace& place, Attach attach)
    : place_(place),
      attach_(std::move(attach)),
      pages_in_(place.engine.pages_in()),
      any_bytes_(std::any_of(place.plans.begin(), place.plans.end(),
                             [](const LayerPlan& plan) { return takes_any_bytes(plan, plan.shapes[0]); })) {
  image_.layers.resize(place.plans.size());
  first_pages_.resize(place.plans.size(), -1);
}

Restoring::Impl::Impl(const SavingPlace& place, Attach attach, SequenceImage behind) : Impl(place, std::move(attach)) {
  image_ = std::move(behind);
  behind_ = true;
  const char* const why = "only a sequence that ends with a block can be gone on behind";
  if (!image_.shifts.empty()) refuse(std::string(why) + ": its positions were moved");
  for (const LayerPlan& plan : place_.plans) {
    if (plan.owns_rows()) blocks_ = std::max(blocks_, image_.layers[static_cast<size_t>(plan.index)].sealed_pages());
  }
  for (const LayerPlan& plan : place_.plans) {
    if (!plan.owns_rows()) continue;
    const auto index = static_cast<size_t>(plan.index);
    LayerImage& layer = image_.layers[index];
    if (blocks_ == 0 || layer.length != plan.sinks + blocks_ * kPageTokens || layer.sealed_pages() != blocks_ ||
        layer.guesses_from >= 0) {
      refuse(std::string(why) + ": layer " + std::to_string(plan.index) + " has " + std::to_string(layer.length) +
             " tokens, " + std::to_string(layer.sealed_pages()) + " pages of them");
    }
    if (!layer.pages.empty()) first_pages_[index] = layer.dropped_pages;
    layer.queries.clear();  // as one that was made of all of the blocks
    layer.query_count = 0;
  }
  tables_ = image_.tables(place_.plans, blocks_).back();
}

const LayerPlan& Restoring::Impl::plan_of(const ImagePart& part) const {
  if (part.layer < 0 || part.layer >= static_cast<int>(place_.plans.size())) {
    invalid(part.layer, "does not exist: there are " + std::to_string(place_.plans.size()));
  }
  const LayerPlan& plan = place_.plans[static_cast<size_t>(part.layer)];
  if (!plan.owns_rows()) invalid(part.layer, "has no rows of its own, and a part for them");
  return plan;
}

void Restoring::Impl::add_block(const uint8_t* bytes, int64_t count, const uint8_t* chain) {
  require_pointer("bytes", bytes);
  if (broken_) refuse("what failed once cannot go on");
  if (has_state_) refuse("a block after the state");
  broken_ = true;  // until it is done
  const ThreadPool::Use threads(place_.threads);
  // Bytes are on their way while the head is read.
  const bool early = any_bytes_ && count <= most_block_bytes(place_.plans);
  const ImageInUse use(*pages_in_, bytes, early ? count : 0);
  const ImageReader image(ImageType::kBlock, bytes, count);
  const ImageHead& head = image.head();
  const std::string name = "block " + std::to_string(blocks_);
  if (head.fingerprint != place_.identity.fingerprint) {
    bad_bytes(BadBytes::kMismatch,
              name + " has fingerprint " + hex(head.fingerprint) + ", the cache " + hex(place_.identity.fingerprint));
  }
  if (head.number != blocks_) {
    bad_bytes(BadBytes::kOrder, "block " + std::to_string(head.number) + " in place of " + name);
  }
  if (chain && !std::equal(head.chain.begin(), head.chain.end(), chain)) {
    bad_bytes(BadBytes::kOrder, name + " is of other tokens");
  }
  if (head.tables_before != tables_) bad_bytes(BadBytes::kOrder, name + " goes by other side tables than are there");
  const ImagePart* last = nullptr;
  std::vector<const ImagePart*> pages;
  for (const ImagePart& part : image.parts()) {
    plan_of(part);
    if (last && (part.layer < last->layer || (part.layer == last->layer && part.kind <= last->kind))) {
      bad_bytes(BadBytes::kInvalid, name + " has its parts out of order");
    }
    last = &part;
    switch (part.kind) {
      case PartKind::kKeyTable:
      case PartKind::kValueTable:
        take_table(image, part, part.kind == PartKind::kKeyTable ? Side::kKeys : Side::kValues, blocks_);
        break;
      case PartKind::kPage:
        pages.push_back(&part);
        break;
      case PartKind::kSinks:
        if (blocks_ != 0) invalid(part.layer, "has sinks in " + name);
        check_rows(part, plan_of(part).sinks);
        image_.layers[static_cast<size_t>(part.layer)].sinks =
            std::move(Halves::make({static_cast<size_t>(part.bytes) / sizeof(uint16_t)})[0]);
        take_rows(image, part, image_.layers[static_cast<size_t>(part.layer)].sinks);
        break;
      default:
        invalid(part.layer, "has a part of kind " + std::to_string(static_cast<uint32_t>(part.kind)) + " in a block");
    }
  }
  if (count > most_block_bytes(place_.plans)) bad_bytes(BadBytes::kInvalid, name + " is larger than any");
  take_pages(image, pages);
  tables_ = tables_after(tables_, image.parts());
  if (head.tables_after != tables_) bad_bytes(BadBytes::kInvalid, name + " does not name its side tables rightly");
  digests_.add(image.digest().data(), image.digest().size());
  blocks_ += 1;
  broken_ = false;
}

void Restoring::Impl::take_table(const ImageReader& image, const ImagePart& part, Side side, int64_t block) {
  const LayerPlan& plan = plan_of(part);
  const int index = static_cast<int>(side);
  std::vector<SideChunk>& chunks = image_.layers[static_cast<size_t>(part.layer)].tables[index].chunks;
  if (!plan.codecs[index]->grow) invalid(part.layer, "has a side table that its codec does not know");
  const int64_t vector =
      int64_t{plan.attention.kv_heads} * plan.attention.head_dim * static_cast<int64_t>(sizeof(uint16_t));
  const int64_t rows = part.bytes / vector;
  if (part.bytes % vector != 0 || rows >= kMaxLabels) invalid(part.layer, "has a side table of an odd size");
  // The first has any number of vectors, for page 0; those after it one each, page by page.
  const bool first = chunks.empty();
  const bool follows = first ? block == 0 : rows == 1 && (chunks.size() == 1 || chunks.back().page + 1 == block);
  if (!follows || part.level != 0) invalid(part.layer, "has a side table that does not go on where it ended");
  auto halves = std::make_shared<std::vector<uint16_t>>(static_cast<size_t>(part.bytes) / sizeof(uint16_t));
  image.take(part, reinterpret_cast<uint8_t*>(halves->data()));
  require_at_most(kFinite, part.layer, halves->data(), halves->size());
  const uint16_t* vectors = halves->data();
  chunks.push_back({std::shared_ptr<const uint16_t>(std::move(halves), vectors), static_cast<int>(rows), block});
}

void Restoring::Impl::check_rows(const ImagePart& part, int64_t rows) const {
  const int64_t bytes = rows * plan_of(part).elements_per_token() * static_cast<int64_t>(sizeof(uint16_t));
  if (part.bytes == bytes && part.level == 0) return;
  invalid(part.layer, "has " + std::to_string(part.bytes) + " bytes of 16-bit rows, not " + std::to_string(bytes));
}

void Restoring::Impl::take_rows(const ImageReader& image, const ImagePart& part, Halves& rows) const {
  image.take(part, reinterpret_cast<uint8_t*>(rows.data()));
  require_at_most(kAppendable, part.layer, rows.data(), rows.size());
}

std::vector<uint32_t> Restoring::Impl::check_page(const LayerPlan& plan, const PageShape& shape, const uint8_t* page,
                                                  int64_t bytes, int64_t number) const {
  std::vector<uint32_t> offsets(static_cast<size_t>(shape.parts()) + 1);
  if (shape.varies()) {
    std::memcpy(offsets.data(), page, offsets.size() * sizeof(uint32_t));
    const auto* end = page + offsets.size() * sizeof(uint32_t);
    const bool padded = std::all_of(end, page + shape.table_bytes(), [](uint8_t byte) { return byte == 0; });
    if (!padded || offsets.front() != shape.table_bytes() || offsets.back() != bytes) {
      invalid(plan.index, "has a page whose table is not one");
    }
  } else {
    offsets[0] = 0;
    for (int i = 0; i < shape.parts(); ++i) {
      offsets[i + 1] = offsets[i] + static_cast<uint32_t>(shape.formats[i >= shape.parts(Side::kKeys)].page_bytes);
    }
  }
  std::vector<uint32_t> sizes;
  for (int i = 0; i < shape.parts(); ++i) {
    const int side = i >= shape.parts(Side::kKeys);
    const PageFormat& format = shape.formats[side];
    if (offsets[i + 1] < offsets[i] || offsets[i + 1] > bytes) invalid(plan.index, "has parts that overlap");
    const size_t size = offsets[i + 1] - offsets[i];
    if (size % kImageAlignment != 0 || (!format.varies() && size != format.page_bytes)) {
      invalid(plan.index, "has a part of " + std::to_string(size) + " bytes");
    }
    sizes.push_back(static_cast<uint32_t>(size));
    if (!plan.codecs[side]->valid) continue;
    const SideTable& table = image_.layers[static_cast<size_t>(plan.index)].tables[side];
    const std::vector<const uint16_t*> vectors(static_cast<size_t>(table.size()));
    if (!plan.codecs[side]->valid(format, side_view(table, vectors, number), page + offsets[i], size)) {
      invalid(plan.index, "has a page that codec " + std::string(plan.codecs[side]->name) + " cannot read");
    }
  }
  return sizes;
}

std::shared_ptr<Page> Restoring::Impl::make_page(const LayerPlan& plan, Pool::Reservation& bytes,
                                                 const PageShape& shape, const std::vector<uint32_t>& sizes,
                                                 const uint8_t* from, int64_t stored, int64_t number) {
  Block block = bytes.take(BlockKind::kPage, stored, BlockPlace::kEngine, plan.can_shrink());
  auto page = std::make_shared<Page>(place_.memory, plan.index, std::move(block), shape, sizes.data());
  place_.engine.write_page(plan, page->to_seal(number), from);
  return page;
}

// The shape of a page whose size is one that it could have, and which is the next of its layer.
const PageShape& Restoring::Impl::check_place(const ImagePart& part) {
  const LayerPlan& plan = plan_of(part);
  const auto index = static_cast<size_t>(part.layer);
  if (part.level < 0 || part.level >= static_cast<int>(plan.shapes.size())) {
    invalid(part.layer, "has a page of shape " + std::to_string(part.level));
  }
  const PageShape& shape = plan.shapes[static_cast<size_t>(part.level)];
  const auto least = static_cast<int64_t>(shape.bytes());
  const int64_t most = shape.varies() ? least + plan.most_varying_bytes() : least;
  if (part.bytes < least || part.bytes > most) {
    invalid(part.layer, "has a page of " + std::to_string(part.bytes) + " bytes");
  }
  if (first_pages_[index] < 0) first_pages_[index] = blocks_;
  if (first_pages_[index] + static_cast<int64_t>(image_.layers[index].pages.size()) != blocks_) {
    bad_bytes(BadBytes::kIncomplete,
              "layer " + std::to_string(part.layer) + " lacks the page before block " + std::to_string(blocks_));
  }
  return shape;
}

// False where there is no room before others have shrunk.
bool Restoring::Impl::start_page(const ImagePart& part, const PageShape& shape, std::vector<PagesIn::Page>& pages) {
  const LayerPlan& plan = plan_of(part);
  std::optional<Pool::Reservation> room = place_.memory.try_take(plan.index, part.bytes);
  if (!room && place_.memory.can_shrink()) return false;
  if (!room) room.emplace(place_.memory.pool().reserve(plan.index, part.bytes));  // throws
  Block block = room->take(BlockKind::kPage, part.bytes, BlockPlace::kEngine, plan.can_shrink());
  auto page = std::make_shared<Page>(place_.memory, plan.index, std::move(block), shape, nullptr);
  pages.push_back({&plan, page->to_seal(blocks_), part.offset, part.crc});
  image_.layers[static_cast<size_t>(part.layer)].pages.push_back(std::move(page));
  return true;
}

void Restoring::Impl::take_pages(const ImageReader& image, const std::vector<const ImagePart*>& parts) {
  std::vector<PagesIn::Page> pages;
  std::vector<std::pair<const ImagePart*, const PageShape*>> others;
  for (const ImagePart* part : parts) {
    const PageShape& shape = check_place(*part);
    if (!takes_any_bytes(plan_of(*part), shape) || !start_page(*part, shape, pages)) others.push_back({part, &shape});
  }
  refuse_damage(pages_in_->write(pages));
  // All of them are of different layers, whose side tables are there now.
  ThreadPool::current().run(static_cast<int>(others.size()), [&](int i) {
    const auto& [part, shape] = others[static_cast<size_t>(i)];
    take_page(image, *part, *shape);
  });
}

void Restoring::Impl::refuse_damage(const std::optional<PagesIn::Damage>& damage) const {
  if (!damage) return;
  bad_bytes(BadBytes::kChecksum,
            "page " + std::to_string(damage->page) + " of layer " + std::to_string(damage->layer) + " is damaged");
}

void Restoring::Impl::take_page(const ImageReader& image, const ImagePart& part, const PageShape& shape) {
  const LayerPlan& plan = plan_of(part);
  LayerImage& layer = image_.layers[static_cast<size_t>(part.layer)];
  struct PageOnItsWay;
  uint8_t* const page = thread_scratch<PageOnItsWay, uint8_t>(static_cast<size_t>(part.bytes));
  image.take(part, page);
  std::vector<uint32_t> sizes = check_page(plan, shape, page, part.bytes, blocks_);
  std::vector<uint32_t> offsets = {static_cast<uint32_t>(shape.table_bytes())};
  for (const uint32_t size : sizes) offsets.push_back(offsets.back() + size);
  PageView view;
  view.shape = &shape;
  if (shape.varies()) view.offsets = offsets.data();
  const int64_t stored = place_.engine.stored_bytes(plan, view, page);
  std::optional<Pool::Reservation> room = place_.memory.try_take(plan.index, stored);
  if (!room && place_.memory.can_shrink()) {
    // Others give way when all else is known to be right.
    std::vector<uint8_t> bytes(page, page + part.bytes);
    std::lock_guard<std::mutex> lock(waiting_mutex_);
    waiting_.push_back({plan.index, layer.pages.size(), &shape, std::move(sizes), std::move(bytes), stored});
    layer.pages.push_back(nullptr);
    return;
  }
  if (!room) room.emplace(place_.memory.pool().reserve(plan.index, stored));  // throws
  layer.pages.push_back(make_page(plan, *room, shape, sizes, page, stored, blocks_));
}

void Restoring::Impl::set_state(const uint8_t* bytes, int64_t count) {
  require_pointer("bytes", bytes);
  if (broken_) refuse("what failed once cannot go on");
  if (has_state_) refuse("a second state");
  if (behind_) refuse("a state behind blocks of another sequence");
  broken_ = true;
  const ThreadPool::Use threads(place_.threads);
  const ImageReader image(ImageType::kState, bytes, count);
  const ImageHead& head = image.head();
  if (head.fingerprint != place_.identity.fingerprint) {
    bad_bytes(BadBytes::kMismatch,
              "the state has fingerprint " + hex(head.fingerprint) + ", the cache " + hex(place_.identity.fingerprint));
  }
  if (head.number != blocks_) {
    bad_bytes(BadBytes::kIncomplete, std::to_string(blocks_) + " blocks of " + std::to_string(head.number));
  }
  if (head.chain != digests_.finish() || head.tables_after != tables_ || head.tables_before != tables_) {
    bad_bytes(BadBytes::kOrder, "the state was saved with other blocks");
  }
  if (image.parts().empty() || image.parts()[0].kind != PartKind::kLayers) {
    bad_bytes(BadBytes::kInvalid, "the state does not begin with its layers");
  }
  const ImagePart* last = nullptr;
  std::vector<const ImagePart*> of_layers;
  for (const ImagePart& part : image.parts()) {
    const bool of_layer =
        part.kind == PartKind::kSinks || part.kind == PartKind::kWindow || part.kind == PartKind::kQueries;
    const bool in_order = !last || (!of_layer && part.kind > last->kind) ||
                          (of_layer && (last->kind == PartKind::kLayers || last->kind == PartKind::kShifts)) ||
                          part.layer > last->layer || (part.layer == last->layer && part.kind > last->kind);
    if (!in_order) bad_bytes(BadBytes::kInvalid, "the state has its parts out of order");
    last = &part;
    if (part.kind == PartKind::kLayers) {
      take_numbers(image, part);
    } else if (part.kind == PartKind::kShifts) {
      take_shifts(image, part);
    } else if (of_layer) {
      of_layers.push_back(&part);
    } else {
      bad_bytes(BadBytes::kInvalid,
                "a part of kind " + std::to_string(static_cast<uint32_t>(part.kind)) + " in a state");
    }
  }
  check_rows_are_there(of_layers);
  take_layer_state(image, of_layers);
  has_state_ = true;
  broken_ = false;
}

void Restoring::Impl::take_numbers(const ImageReader& image, const ImagePart& part) {
  if (part.bytes != static_cast<int64_t>(place_.plans.size() * sizeof(LayerNumbers)) || part.layer != 0 ||
      part.level != 0) {
    bad_bytes(BadBytes::kInvalid, "the state is one of other layers");
  }
  numbers_.resize(place_.plans.size());
  image.take(part, reinterpret_cast<uint8_t*>(numbers_.data()));
  for (const LayerPlan& plan : place_.plans) {
    const auto index = static_cast<size_t>(plan.index);
    const LayerNumbers& numbers = numbers_[index];
    check_numbers(plan, numbers);
    LayerImage& layer = image_.layers[index];
    layer.length = numbers.length;
    layer.dropped_pages = numbers.dropped_pages;
    layer.guesses_from = numbers.guesses_from;
    layer.query_count = numbers.query_count;
    const int64_t held = numbers.sealed_pages - numbers.dropped_pages;
    if (static_cast<int64_t>(layer.pages.size()) != held || (held > 0 && first_pages_[index] != layer.dropped_pages)) {
      invalid(plan.index, "has other pages than its state says");
    }
  }
}

// All that a layer can be.
void Restoring::Impl::check_numbers(const LayerPlan& plan, const LayerNumbers& numbers) const {
  constexpr int64_t kMost = INT64_MAX / 4;  // tokens, or queries: sums with it stay numbers
  const bool sane = numbers.length >= 0 && numbers.length <= kMost && numbers.dropped_pages >= 0 &&
                    numbers.sealed_pages >= numbers.dropped_pages && numbers.sealed_pages <= blocks_ &&
                    numbers.query_count >= 0 && numbers.query_count <= kMost && numbers.unused == 0;
  if (!sane) invalid(plan.index, "has numbers that no layer has");
  // All layers guess or none, from one length on; those without rows have none.
  const int64_t guesses_from = numbers_[static_cast<size_t>(place_.plans.front().source)].guesses_from;
  if (numbers.guesses_from != (plan.owns_rows() ? guesses_from : std::min<int64_t>(guesses_from, 0))) {
    invalid(plan.index, "does not guess as the others do");
  }
  if (!plan.owns_rows()) {
    if (numbers.length != 0 || numbers.sealed_pages != 0 || numbers.query_count != 0) {
      invalid(plan.index, "has no rows of its own, and a length");
    }
    return;
  }
  const bool guessing = guesses_from != -1;
  if (guessing &&
      (guesses_from < 0 || guesses_from > numbers.length || numbers.length - guesses_from > kMaxMaskedTokens)) {
    invalid(plan.index, "has guesses that a layer cannot have");
  }
  // Guesses may all go: so they are in no page, and what the token before them sees is there.
  const int64_t settled = guessing ? guesses_from : numbers.length;
  const int64_t window = std::max<int64_t>(0, numbers.length - plan.sinks) - numbers.sealed_pages * kPageTokens;
  if (numbers.sealed_pages * kPageTokens > std::max<int64_t>(0, settled - plan.sinks) ||
      window > plan.most_window_rows()) {
    invalid(plan.index, "has a window of " + std::to_string(window) + " tokens");
  }
  require_seen_pages(plan, settled, numbers.dropped_pages);
}

void Restoring::Impl::take_shifts(const ImageReader& image, const ImagePart& part) {
  const auto size = static_cast<int64_t>(sizeof(PositionShift));
  const bool turns = std::all_of(place_.plans.begin(), place_.plans.end(),
                                 [](const LayerPlan& plan) { return plan.turns != nullptr; });
  if (part.bytes % size != 0 || part.bytes == 0 || part.bytes / size > kMostShifts || part.layer != 0 ||
      part.level != 0 || !turns) {
    bad_bytes(BadBytes::kInvalid, "the state has moves of positions that cannot be");
  }
  image_.shifts.resize(static_cast<size_t>(part.bytes / size));
  image.take(part, reinterpret_cast<uint8_t*>(image_.shifts.data()));
  int64_t before = -1;
  for (const PositionShift& shift : image_.shifts) {
    if (shift.first <= before || shift.offset < -kMostPositionOffset || shift.offset > kMostPositionOffset) {
      bad_bytes(BadBytes::kInvalid, "the state has moves of positions that cannot be");
    }
    before = shift.first;
  }
}

// All parts that layers must have, and none that they cannot.
void Restoring::Impl::check_rows_are_there(const std::vector<const ImagePart*>& parts) const {
  struct There {
    bool sinks, window, queries;
  };
  std::vector<There> there(place_.plans.size());
  for (const ImagePart* part : parts) {
    const LayerPlan& plan = plan_of(*part);
    const auto index = static_cast<size_t>(part->layer);
    if (part->kind == PartKind::kSinks) {
      check_rows(*part, image_.layers[index].sink_rows(plan));
      there[index].sinks = true;
    } else if (part->kind == PartKind::kWindow) {
      check_rows(*part, image_.layers[index].window_rows(plan));
      there[index].window = true;
    } else {
      if (!plan.wants_queries || part->bytes != QuerySums::bytes_before_count(plan.attention) || part->level != 0) {
        invalid(part->layer, "has statistics of queries that its codecs do not know");
      }
      there[index].queries = true;
    }
  }
  for (const LayerPlan& plan : place_.plans) {
    const auto index = static_cast<size_t>(plan.index);
    const LayerImage& layer = image_.layers[index];
    const std::string name = "layer " + std::to_string(plan.index);
    if ((layer.sink_rows(plan) > 0 && !there[index].sinks) || (layer.window_rows(plan) > 0 && !there[index].window)) {
      bad_bytes(BadBytes::kIncomplete, name + " lacks 16-bit rows");
    }
    if (plan.owns_rows() && plan.wants_queries && layer.length > 0 && !there[index].queries) {
      bad_bytes(BadBytes::kIncomplete, name + " lacks its statistics of queries");
    }
  }
}

void Restoring::Impl::take_layer_state(const ImageReader& image, const std::vector<const ImagePart*>& parts) {
  image_.make_rows(place_.plans);
  ThreadPool::current().run(static_cast<int>(parts.size()), [&](int i) {
    const ImagePart& part = *parts[static_cast<size_t>(i)];
    LayerImage& layer = image_.layers[static_cast<size_t>(part.layer)];
    if (part.kind == PartKind::kQueries) {
      layer.queries = image.take(part);
      require_magnitudes(place_.plans[static_cast<size_t>(part.layer)], layer.queries);
    } else {
      take_rows(image, part, part.kind == PartKind::kSinks ? layer.sinks : layer.window);
    }
  });
}

// A sequence of blocks alone.
void Restoring::Impl::cut_after_blocks() {
  if (blocks_ == 0) bad_bytes(BadBytes::kIncomplete, "neither blocks nor a state");
  for (const LayerPlan& plan : place_.plans) {
    if (!plan.owns_rows()) continue;
    const auto index = static_cast<size_t>(plan.index);
    LayerImage& layer = image_.layers[index];
    const std::string name = "layer " + std::to_string(plan.index);
    if (static_cast<int64_t>(layer.sinks.size()) != plan.sinks * plan.elements_per_token()) {
      bad_bytes(BadBytes::kIncomplete, name + " lacks its first tokens");
    }
    layer.length = plan.sinks + blocks_ * kPageTokens;
    layer.dropped_pages = layer.pages.empty() ? blocks_ : first_pages_[index];
    if (layer.sealed_pages() != blocks_) bad_bytes(BadBytes::kIncomplete, name + " lacks its newest page");
    require_seen_pages(plan, layer.length, layer.dropped_pages);
  }
}

int64_t Restoring::Impl::finish() {
  if (broken_) refuse("what failed once cannot go on");
  broken_ = true;
  const ThreadPool::Use threads(place_.threads);
  if (!has_state_) cut_after_blocks();
  refuse_damage(pages_in_->finish());
  std::vector<std::pair<int, Memory::Needs>> needs;
  for (const LayerPlan& plan : place_.plans) {
    needs.push_back(
        {plan.index, {SequenceLayer::bytes_to_restore(plan, image_.layers[static_cast<size_t>(plan.index)])}});
  }
  for (const Waiting& page : waiting_) needs[static_cast<size_t>(page.layer)].second.bytes += page.stored;
  place_.memory.check_room(needs);
  std::vector<Pool::Reservation> rooms;
  for (const auto& [layer, each] : needs) rooms.push_back(place_.memory.make_room(layer, {each}).bytes);
  for (Waiting& page : waiting_) {
    const auto index = static_cast<size_t>(page.layer);
    const int64_t number = first_pages_[index] + static_cast<int64_t>(page.index);
    image_.layers[index].pages[page.index] =
        make_page(place_.plans[index], rooms[index], *page.shape, page.sizes, page.bytes.data(), page.stored, number);
    page.bytes = {};
  }
  std::vector<SequenceLayer> layers;
  layers.reserve(place_.plans.size());
  std::vector<ImageRows> rows;
  for (const LayerPlan& plan : place_.plans) {
    const auto index = static_cast<size_t>(plan.index);
    if (!has_state_) drop_unseen(plan, image_.layers[index]);
    const auto pages = place_.memory.read(plan.index);  // those of others stay as they are
    layers.emplace_back(plan, place_.engine, rooms[index], image_.layers[index]);
    layers.back().image_rows(plan, image_.layers[index], rows);
  }
  place_.engine.write_halves(rows);
  for (SequenceLayer& layer : layers) layer.enlist(place_.memory);
  const int64_t id = attach_(std::move(layers), std::move(image_.shifts));
  for (LayerImage& layer : image_.layers) layer.pages.clear();  // they live as long as the sequence
  return id;
}

void Restoring::destroy(Restoring* restoring) { delete restoring; }
Restoring::Restoring(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Restoring::~Restoring() = default;
void Restoring::add_block(const uint8_t* bytes, int64_t count, const uint8_t* chain) {
  impl_->add_block(bytes, count, chain);
}
void Restoring::set_state(const uint8_t* bytes, int64_t count) { impl_->set_state(bytes, count); }
int64_t Restoring::finish() { return impl_->finish(); }

}  // namespace kvasir
