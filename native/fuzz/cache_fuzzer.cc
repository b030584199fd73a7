// Programs on one cache: a configuration, then calls, right and wrong ones, beside a model that knows lengths alone.
//
// Asserted: a call succeeds or throws kvasir::Error; a call that failed changed no length; outputs of finite queries
// are finite; what is read twice is the same; the budget holds; a cache without sequences holds nothing.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>

#include "fuzz/input.h"
#include "kvasir/kvasir.h"

namespace kvasir::fuzz {
namespace {

constexpr int kLongest = 700;

template <typename T>
struct Destroy {
  void operator()(T* object) const { T::destroy(object); }
};
template <typename T>
using Owned = std::unique_ptr<T, Destroy<T>>;

struct Shape {
  int query_heads, kv_heads, head_dim;
  int64_t row() const { return int64_t{kv_heads} * head_dim; }
  int64_t query() const { return int64_t{query_heads} * head_dim; }
};

struct Model {
  int64_t id;
  std::vector<int64_t> lengths;
};

class Program {
 public:
  explicit Program(Input& input) : input_(input) {}

  void run() {
    if (!configure()) return;
    for (int step = 0; step < 64 && !input_.ended(); ++step) {
      if (sequences_.empty()) sequences_.push_back({cache_->new_sequence(), std::vector<int64_t>(layers_)});
      call(sequences_[input_.pick(static_cast<int>(sequences_.size()))]);
      check();
    }
    for (const Model& model : sequences_) cache_->release(model.id);
    sequences_.clear();
    check();
  }

 private:
  bool configure() {
    layers_ = 1 + input_.pick(3);
    shape_.kv_heads = 1 + input_.pick(3);
    shape_.query_heads = shape_.kv_heads * (1 + input_.pick(5));
    static constexpr int kDims[] = {32, 48, 64, 80, 128, 256};
    shape_.head_dim = kDims[input_.pick(6)];
    Owned<CacheConfig> config(CacheConfig::create(layers_));
    config->set_heads(kAllLayers, shape_.query_heads, shape_.kv_heads, shape_.head_dim);
    if (input_.flip()) config->set_sinks(input_.pick(140));
    if (input_.flip()) config->set_window(input_.pick(300));
    if (input_.rarely()) config->set_sliding_window(input_.pick(layers_), 1 + input_.pick(400));
    if (input_.flip()) config->set_precision(Precision::kFast);
    if (input_.flip()) budget_ = 10000 + 4000 * input_.pick(1000);
    config->set_budget(budget_);
    for (Side side : {Side::kKeys, Side::kValues}) {
      static constexpr int kWidths[] = {1, 2, 3, 4, 8, 16};
      const int codec = input_.pick(codec_count());
      const bool set =
          succeeds([&] { config->set_codec(kAllLayers, side, codec_name(codec), kWidths[input_.pick(6)]); });
      for (int i = set ? input_.pick(3) : 0; i > 0 && codec_option_count(codec) > 0; --i) {
        const char* option = codec_option_name(codec, input_.pick(codec_option_count(codec)));
        const double value = input_.flip() ? input_.pick(129) : static_cast<double>(input_.wild_float());
        succeeds([&] { config->set_option(kAllLayers, side, option, value); });
      }
    }
    return succeeds([&] { cache_.reset(Cache::create(*config)); });
  }

  void call(Model& model) {
    switch (input_.pick(10)) {
      case 0:
        return mistake(model);
      case 1:
        return fork(model);
      case 2:
        return truncate(model);
      case 3:
        return release(model);
      case 4:
      case 5:
        return attend(model);
      case 6:
        return observe(model);
      default:
        return append(model);
    }
  }

  void append(Model& model) {
    const int64_t tokens = input_.flip() ? 1 + input_.pick(4) : 1 + input_.pick(300);
    const int first = input_.rarely() ? input_.pick(layers_) : 0;
    if (*std::max_element(model.lengths.begin(), model.lengths.end()) + tokens > kLongest) return;
    std::vector<float> keys = input_.rows(tokens * shape_.row());
    std::vector<float> values = input_.rows(tokens * shape_.row());
    const bool spoilt = input_.rarely();
    if (spoilt) {
      static constexpr float kBad[] = {std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY, 40000.0f};
      std::vector<float>& side = input_.flip() ? keys : values;
      side[static_cast<size_t>(input_.wild() & INT64_MAX) % side.size()] = kBad[input_.pick(4)];
    }
    for (int layer = first; layer < layers_; ++layer) {
      const bool done = succeeds([&] { cache_->append(model.id, layer, keys.data(), values.data(), tokens); });
      require(!(done && spoilt), "append refuses what is not finite");
      if (!done) return;
      model.lengths[static_cast<size_t>(layer)] += tokens;
    }
  }

  void attend(const Model& model) {
    const int layer = input_.pick(layers_);
    const int tokens = input_.flip() ? 1 : 1 + input_.pick(20);
    std::vector<float> queries = input_.rows(tokens * shape_.query());
    std::vector<float> outputs(queries.size(), std::numeric_limits<float>::quiet_NaN());
    const int64_t length = model.lengths[static_cast<size_t>(layer)];
    const bool done = succeeds([&] { cache_->attend(layer, &model.id, 1, tokens, queries.data(), outputs.data()); });
    require(!(done && length < tokens), "a layer shorter than its queries is refused");
    if (!done) return;
    for (float output : outputs) require(std::isfinite(output), "outputs are finite");
  }

  void observe(const Model& model) {
    const int tokens = 1 + input_.pick(5);
    std::vector<float> queries = input_.rows(tokens * shape_.query());
    succeeds([&] { cache_->observe(input_.pick(layers_), &model.id, 1, tokens, queries.data()); });
  }

  void fork(const Model& model) {
    if (sequences_.size() >= 5) return;
    Model copy = model;
    if (succeeds([&] { copy.id = cache_->fork(model.id); })) sequences_.push_back(copy);
  }

  void truncate(Model& model) {
    const int64_t length = input_.flip() ? input_.pick(kLongest) : input_.wild();
    if (!succeeds([&] { cache_->truncate(model.id, length); })) return;
    require(length >= 0, "a negative length is refused");
    for (int64_t& each : model.lengths) each = std::min(each, length);
  }

  void release(Model& model) {
    cache_->release(model.id);
    require(!succeeds([&] { cache_->length(model.id, 0); }), "a released sequence is unknown");
    std::swap(model, sequences_.back());
    sequences_.pop_back();
  }

  // Calls that nobody should make. Few may succeed; none may do harm.
  void mistake(Model& model) {
    std::vector<float> some = input_.rows(4 * std::max(shape_.row(), shape_.query()));
    const int64_t sequence = input_.flip() ? model.id : input_.wild();
    const int layer = input_.flip() ? input_.pick(layers_) : static_cast<int>(input_.wild());
    const int64_t count = input_.wild();
    const Side side = static_cast<Side>(input_.flip() ? input_.pick(2) : static_cast<int>(input_.wild()));
    const bool known = sequence == model.id && layer >= 0 && layer < layers_;
    switch (input_.pick(6)) {
      case 0:
        if (known && count > 0) return;  // would read what is not there: a promise of the caller's
        require(!succeeds([&] { cache_->append(sequence, layer, some.data(), some.data(), count); }) || count == 0,
                "an append of less than nothing, or to nowhere, is refused");
        return;
      case 1:
        require(!succeeds([&] { cache_->append(sequence, layer, nullptr, some.data(), 1); }), "null is refused");
        return;
      case 2:
        require(!succeeds([&] { cache_->attend(layer, &sequence, 1, 1, some.data(), nullptr); }), "null is refused");
        return;
      case 3: {
        const int64_t first = input_.wild();
        if (count > 4 && known && first >= 0 && first < kLongest) return;  // as above
        succeeds([&] { cache_->read(sequence, layer, side, first, std::min<int64_t>(count, 4), some.data()); });
        return;
      }
      case 4: {
        std::vector<uint8_t> page(1 << 16);
        const int64_t number = input_.wild();
        const int head = static_cast<int>(input_.wild());
        succeeds([&] { cache_->read_page(sequence, layer, number, side, head, page.data(), input_.pick(1 << 16)); });
        succeeds([&] { cache_->read_table(sequence, layer, side, head, some.data(), 0); });
        return;
      }
      default:
        succeeds([&] { cache_->shift(sequence, count, input_.wild()); });
    }
  }

  void check() {
    for (const Model& model : sequences_) {
      for (int layer = 0; layer < layers_; ++layer) {
        require(cache_->length(model.id, layer) == model.lengths[static_cast<size_t>(layer)],
                "lengths are the model's");
      }
    }
    if (!sequences_.empty()) read_newest(sequences_.front());
    Owned<CacheStats> stats(cache_->stats());
    require(stats->sequences() == static_cast<int64_t>(sequences_.size()), "sequences are counted");
    require(budget_ == 0 || stats->bytes() <= budget_, "the budget holds");
    require(!sequences_.empty() || stats->bytes() == 0, "a cache without sequences holds nothing");
  }

  void read_newest(const Model& model) {
    const int64_t length = model.lengths.front();
    const int64_t tokens = std::min<int64_t>(length, 3);
    if (tokens == 0) return;
    std::vector<float> once(static_cast<size_t>(tokens * shape_.row()));
    std::vector<float> again(once.size());
    for (std::vector<float>* rows : {&once, &again}) {
      if (!succeeds([&] { cache_->read(model.id, 0, Side::kKeys, length - tokens, tokens, rows->data()); })) return;
    }
    require(once == again, "what is read twice is the same, and a number");
  }

  Input& input_;
  int layers_ = 0;
  Shape shape_{};
  int64_t budget_ = 0;
  Owned<Cache> cache_;
  std::vector<Model> sequences_;
};

}  // namespace
}  // namespace kvasir::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  kvasir::set_threads(1);  // what an input does must not depend on time
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvasir::fuzz::Input input(data, size);
  kvasir::fuzz::Program(input).run();
  return 0;
}
