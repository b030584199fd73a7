// Codec commvq. Layers of which both sides are its own have fused attention; pages are canonical in either case.
#include "engine/cuda/families/canonical.h"
#include "engine/cuda/families/commvq_side.h"
#include "engine/cuda/families/fused.h"
#include "kernels/cuda/commvq/attend.h"
#include "kernels/cuda/commvq/types.h"

namespace kvasir::cuda {
namespace {

class CommVqFamily : public CanonicalFamily {
 public:
  explicit CommVqFamily(const DeviceLayer& layer) : CanonicalFamily(layer) {
    const LayerPlan& plan = layer.plan();
    const commvq::KeyModel& model = static_cast<const CommVqKeys&>(at(Side::kKeys)).model();
    const KeyPrecision precision = plan.attention.fast ? KeyPrecision::kFast : KeyPrecision::kExact;
    check(plan_key_tables(model, precision, &key_layout_), "planning CommVQ's tables");
    std::vector<uint8_t> bytes(key_layout_.bytes());
    pack_key_tables(model, key_layout_, plan.frequencies.data(), plan.magnitude, bytes.data());
    key_tables_ = layer.queue().uploaded(bytes, "uploading tables");
  }

  // One query token alone: tables are of whole numbers, and unpacking gives the better scores.
  bool attends(const AttentionRequest& request) const override { return request.tokens == 1; }

  void attend(const AttentionRequest& request, const QueryMemory& memory) override {
    const DeviceQueue& queue = layer_.queue();
    int64_t pages = 0;
    for (int i = 0; i < request.count; ++i) pages += state_of(request.sequences[i]).latest().page_count;
    const std::pair<int, int> capacity = {power_of_two(request.count), power_of_two(std::max<int64_t>(pages, 64))};
    const CommVqValues& values = static_cast<const CommVqValues&>(at(Side::kValues));
    const auto& planned = launches_.at(queue, capacity, [&](CommVqPlan* plan) {
      const AttentionLayer& attention = layer_.plan().attention;
      return plan_commvq(
          {key_layout_, attention.pairs, attention.group(), values.model().page.codes, capacity.first, capacity.second},
          plan);
    });
    const DeviceScratch described = describe(request);
    auto launch = launch_of<CommVqRequest>(request, memory, planned.workspace);
    launch.sequences = described.as<CommVqSequence>();
    launch.key_tables = key_tables_.as<uint8_t>();
    launch.value_tables = values.tables();
    check(launch_commvq(planned.plan, launch, queue.stream), "CommVQ's attention");
  }

 private:
  // All sequences, then the shifts of all of them.
  DeviceScratch describe(const AttentionRequest& request) const {
    size_t shift_count = 0;
    for (int i = 0; i < request.count; ++i) shift_count += static_cast<size_t>(request.sequences[i].shift_count);
    const size_t sequence_bytes = sizeof(CommVqSequence) * static_cast<size_t>(request.count);
    std::vector<uint8_t> bytes(sequence_bytes + sizeof(TokenShift) * shift_count);
    DeviceScratch described = layer_.queue().take(bytes.size());
    auto* sequences = reinterpret_cast<CommVqSequence*>(bytes.data());
    auto* shifts = reinterpret_cast<TokenShift*>(bytes.data() + sequence_bytes);
    const auto* shifts_there = reinterpret_cast<const TokenShift*>(described.as<uint8_t>() + sequence_bytes);
    for (int i = 0; i < request.count; ++i) {
      const SequenceView& view = request.sequences[i];
      const DeviceSequence& known = state_of(view).latest();
      CommVqSequence& sequence = sequences[i];
      // Its pages have one shape: references are addresses.
      sequence.pages = reinterpret_cast<const uint8_t* const*>(known.pages);
      sequence.page_count = known.page_count;
      sequence.hidden_tokens = known.hidden_tokens;
      sequence.page_token = view.length - view.window - int64_t{known.page_count} * kPageTokens;
      sequence.window_token = view.length - view.window;
      sequence.shifts = view.shift_count > 0 ? shifts_there : nullptr;
      sequence.shift_count = view.shift_count;
      for (int s = 0; s < view.shift_count; ++s) *shifts++ = {view.shifts[s].first, view.shifts[s].offset};
      shifts_there += view.shift_count;
      sequence.sinks = known.sinks;
      sequence.window = known.window;
    }
    layer_.queue().upload(described.as<void>(), bytes.data(), bytes.size(), "describing sequences");
    return described;
  }

  KeyTableLayout key_layout_ = {};
  DeviceScratch key_tables_;
  PlannedLaunches<CommVqPlan, std::pair<int, int>> launches_;  // by the most sequences and the most pages
};

std::unique_ptr<PageFamily> family(const DeviceLayer& layer) {
  if (layer.plan().codecs[1] != layer.plan().codecs[0]) return nullptr;
  return std::make_unique<CommVqFamily>(layer);
}

std::unique_ptr<CanonicalSide> side(const DeviceLayer& layer, Side side) {
  if (side == Side::kKeys) return std::make_unique<CommVqKeys>(layer);
  return std::make_unique<CommVqValues>(layer);
}

}  // namespace

extern const DeviceCodec commvq_device;
const DeviceCodec commvq_device = {family, side};

}  // namespace kvasir::cuda
