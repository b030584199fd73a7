#include "engine/blank/blank_engine.h"

#include <stdexcept>

namespace kvasir {
namespace {

// Nobody looks at the memory of an engine but the engine.
class BlankArena : public Arena {
 public:
  uint8_t* take(size_t, bool) override {
    alignas(64) static uint8_t nothing[64];
    return nothing;
  }
  void shrink(uint8_t*, size_t, size_t) noexcept override {}
  void give_back(uint8_t*, size_t, bool) noexcept override {}
};

class BlankAppend : public Append {
 public:
  using Append::Append;

  void open(const SequenceView&, int64_t) override {}
  void rows(Side, int, int64_t, int64_t, float*, int) const override { throw std::logic_error("there are no rows"); }
  // At their largest.
  bool lay_out(const uint8_t*, PartHeads& heads) override {
    const PageShape& shape = plan_.shapes[0];
    const auto parts = static_cast<size_t>(shape.parts());
    for (size_t i = 0; i < heads.sizes.size(); ++i) {
      const auto side = static_cast<int>(place_of(static_cast<int>(i % parts)).side);
      if (!shape.formats[side].varies()) continue;
      heads.sizes[i] = static_cast<uint32_t>(plan_.codecs[side]->part_range(shape.formats[side]).most);
      heads.varying[i / parts] += heads.sizes[i];
    }
    return true;
  }
  bool grow(Side side, SealInput& input, SideTable& table, LayerState*) override {
    const auto index = static_cast<int>(side);
    const PageFormat& format = plan_.attention.formats[index];
    const int64_t row = int64_t{input.kv_heads} * format.head_dim;
    const bool first = table.chunks.empty();
    const int64_t halves = plan_.codecs[index]->growth(format, input.kv_heads, input.page_count, !first);
    // Chunks after the first have one row.
    for (int64_t left = halves; left > 0;) {
      const int64_t taken = first ? halves : row;
      table.chunks.push_back({input.take(taken), static_cast<int>(taken / row), input.first_page});
      left -= taken;
    }
    return true;
  }
  void seal(const std::vector<NewPage>&, const PartHeads&, const SideTable (&)[2], LayerState*) override {}
};

class BlankAppends : public Appends {
 public:
  BlankAppends(const LayerPlan& plan, const std::vector<int64_t>& counts) {
    appends_.reserve(counts.size());
    for (const int64_t tokens : counts) appends_.emplace_back(plan, tokens);
  }
  Append& operator[](int index) override { return appends_[static_cast<size_t>(index)]; }
  void fill(const Target*) override {}
  void finish(const SequenceView*) override {}

 private:
  std::vector<BlankAppend> appends_;
};

}  // namespace

std::shared_ptr<Arena> BlankEngine::arena() { return std::make_shared<BlankArena>(); }

void BlankEngine::nothing_there() { throw std::logic_error("an engine without memory was asked for what is in it"); }

std::unique_ptr<Appends> BlankEngine::begin_appends(const LayerPlan& plan, const TokenRows&,
                                                    const std::vector<int64_t>& counts) {
  return make_blank_appends(plan, counts);
}

std::unique_ptr<Appends> make_blank_appends(const LayerPlan& plan, const std::vector<int64_t>& counts) {
  return std::make_unique<BlankAppends>(plan, counts);
}

}  // namespace kvasir
