// Codec commvq. Layers of which both sides are its own have fused attention; pages are canonical in either case. A side
// that blocks of the device have not the shared memory for is sealed by this machine.
#include <algorithm>

#include "engine/cuda/families/canonical.h"
#include "engine/cuda/families/fused.h"
#include "kernels/cuda/commvq/attend.h"
#include "kernels/cuda/commvq/gather.h"
#include "kernels/cuda/commvq/rows.h"
#include "kernels/cuda/commvq/seal.h"
#include "kernels/cuda/commvq/tables.h"
#include "kernels/cuda/commvq/types.h"

namespace kvasir::cuda {
namespace {

template <class Model>
const Model& model_of(const DeviceLayer& layer, Side side) {
  return static_cast<const Model&>(*layer.format(side).model);
}

std::vector<uint8_t*> parts_of(const NewPages& pages, Side side) {
  std::vector<uint8_t*> parts;
  for (const NewPage& page : pages.pages) parts.push_back(page.data + page.view->part_offset(side, 0));
  return parts;
}

// The list stays until the launch that `launch` makes.
template <class Launch>
void unpack(const DeviceLayer& layer, const PageRun& run, Side side, float* out, const Launch& launch) {
  const DeviceScratch list = layer.queue().uploaded(run.addresses(side), "uploading a list of pages");
  const int64_t offset = run.shape().varies() ? 0 : static_cast<int64_t>(run.shape().part_offset(side, 0));
  check(launch(RowUnpacking{list.as<const uint8_t*>(), run.count(), offset, out}), "unpacking pages");
}

// Codebooks in device memory, the searches that seal by them, and rows.
class CommVqKeys : public CanonicalSide {
 public:
  explicit CommVqKeys(const DeviceLayer& layer);
  bool sealed_here() const override { return !cross_; }
  void seal(const StagedPages& staged, const NewPages& pages) const override;
  void read_rows(const PageRun& run, float* out) const override;

  const commvq::KeyModel& model() const { return model_; }

 private:
  const DeviceLayer& layer_;
  const commvq::KeyModel& model_;
  const DeviceScratch tables_;
  DeviceScratch cross_;  // none where this machine seals
  KeySearch search_;
};

class CommVqValues : public CanonicalSide {
 public:
  explicit CommVqValues(const DeviceLayer& layer);
  bool sealed_here() const override { return !gram_; }
  void seal(const StagedPages& staged, const NewPages& pages) const override;
  void read_rows(const PageRun& run, float* out) const override;

  const commvq::ValueModel& model() const { return model_; }
  // As the model has them.
  const uint16_t* tables() const { return tables_.as<uint16_t>(); }

 private:
  void upload_network(const commvq::ValueNetwork& network);

  const DeviceLayer& layer_;
  const commvq::ValueModel& model_;
  const DeviceScratch tables_, thresholds_;
  DeviceScratch gram_, network_;  // none where this machine seals
  ValueSearch search_ = {};
};

CommVqKeys::CommVqKeys(const DeviceLayer& layer)
    : layer_(layer),
      model_(model_of<commvq::KeyModel>(layer, Side::kKeys)),
      tables_(layer.queue().uploaded(model_.tables, plain_table_bytes(model_), "uploading tables")),
      search_{model_.page, model_.head_dim, model_.pairs, model_.refinements, tables_.as<uint16_t>(), nullptr} {
  if (!seals_commvq_keys(search_)) return;
  cross_ = layer.queue().take(key_cross_bytes(search_));
  check(key_cross(search_, cross_.as<float>(), layer.queue().stream), "preparing CommVQ's keys");
  search_.cross = cross_.as<float>();
}

void CommVqKeys::seal(const StagedPages& staged, const NewPages& pages) const {
  const std::vector<uint8_t*> parts = parts_of(pages, Side::kKeys);
  const auto count = static_cast<int64_t>(parts.size());
  const DeviceScratch scratch = layer_.queue().take(std::max<size_t>(key_scratch_bytes(search_, count), 1));
  check(seal_commvq_keys(search_, {staged.staging, parts.data(), count, scratch.as<void>()}, layer_.queue().stream),
        "sealing pages");
}

void CommVqKeys::read_rows(const PageRun& run, float* out) const {
  unpack(layer_, run, Side::kKeys, out, [&](const RowUnpacking& rows) {
    return launch_commvq_key_rows(model_.page, model_.head_dim, model_.pairs, tables_.as<uint16_t>(), rows,
                                  layer_.queue().stream);
  });
}

CommVqValues::CommVqValues(const DeviceLayer& layer)
    : layer_(layer),
      model_(model_of<commvq::ValueModel>(layer, Side::kValues)),
      tables_(layer.queue().uploaded(model_.tables, plain_table_bytes(model_), "uploading tables")),
      thresholds_(layer.queue().uploaded(model_.thresholds, static_cast<size_t>(model_.page.codes) * sizeof(float),
                                         "uploading thresholds")) {
  search_.page = model_.page;
  search_.kv_heads = model_.kv_heads;
  search_.head_dim = model_.head_dim;
  search_.flips = model_.flips;
  search_.tables = tables();
  search_.thresholds = thresholds_.as<float>();
  if (!seals_commvq_values(search_)) return;
  if (model_.network) upload_network(*model_.network);
  gram_ = layer.queue().take(value_gram_bytes(search_));
  check(value_gram(search_, gram_.as<float>(), layer.queue().stream), "preparing CommVQ's values");
  search_.gram = gram_.as<float>();
}

void CommVqValues::upload_network(const commvq::ValueNetwork& network) {
  const DeviceQueue& queue = layer_.queue();
  const auto width = static_cast<size_t>(search_.width()), logits = static_cast<size_t>(2 * search_.page.codes);
  const auto hidden = static_cast<size_t>(network.hidden), padded = (hidden + 15) / 16 * 16;
  network_ = queue.take((3 * width + padded * width + padded + logits * padded + logits) * sizeof(float));
  check(cudaMemsetAsync(network_.as<void>(), 0, network_.bytes(), queue.stream), "uploading a network");
  float* to = network_.as<float>();
  // Rows of `columns` elements, `stride` apart where they go; `room` is what all of them take.
  const auto copy = [&](const float* from, size_t rows, size_t columns, size_t stride, size_t room) {
    check(cudaMemcpy2DAsync(to, stride * sizeof(float), from, columns * sizeof(float), columns * sizeof(float), rows,
                            cudaMemcpyHostToDevice, queue.stream),
          "uploading a network");
    to += room;
    return to - room;
  };
  const auto copy_row = [&](const float* from, size_t columns, size_t room) {
    return copy(from, 1, columns, columns, room);
  };
  search_.has_network = true;
  search_.network.hidden = static_cast<int>(padded);
  search_.network.scale = copy_row(network.scale, width, width);
  search_.network.norm_weight = copy_row(network.norm_weight, width, width);
  search_.network.norm_bias = copy_row(network.norm_bias, width, width);
  search_.network.first_weight = copy(network.first_weight, hidden, width, width, padded * width);
  search_.network.first_bias = copy_row(network.first_bias, hidden, padded);
  search_.network.second_weight = copy(network.second_weight, logits, hidden, padded, logits * padded);
  search_.network.second_bias = copy_row(network.second_bias, logits, logits);
}

void CommVqValues::seal(const StagedPages& staged, const NewPages& pages) const {
  const std::vector<uint8_t*> parts = parts_of(pages, Side::kValues);
  const auto count = static_cast<int64_t>(parts.size());
  const DeviceScratch scratch = layer_.queue().take(std::max<size_t>(value_scratch_bytes(search_, count), 1));
  check(seal_commvq_values(search_, {staged.staging, parts.data(), count, scratch.as<void>()}, layer_.queue().stream),
        "sealing pages");
}

void CommVqValues::read_rows(const PageRun& run, float* out) const {
  unpack(layer_, run, Side::kValues, out, [&](const RowUnpacking& rows) {
    return launch_commvq_value_rows(model_.page, model_.kv_heads, model_.head_dim, tables(), rows,
                                    layer_.queue().stream);
  });
}

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
  bool attends(const SequenceView&, const QueryRun& run) const override { return run.tokens == 1; }

  bool caps() const override { return true; }
  void attend(const AttentionRequest& request, const QueryMemory& memory) override {
    const DeviceQueue& queue = layer_.queue();
    int64_t pages = 0;
    const std::vector<DeviceSequence> seen = steps_of(request);
    for (const DeviceSequence& sequence : seen) pages += sequence.page_count;
    const std::pair<int, int> capacity = {power_of_two(request.count), power_of_two(std::max<int64_t>(pages, 64))};
    const auto planned =
        launches_.at(queue, capacity, [&](CommVqPlan* made) { return plan(capacity.first, capacity.second, made); });
    const DeviceScratch described = describe(request, seen);
    launch(planned, request, memory, described.as<CommVqSequence>(), queue.stream);
  }

  // Positions are those of tokens: neither shifts nor pages that a sliding window drops can be followed.
  bool captures(const AttentionRequest& request) const override {
    bool placed = request.layer->sliding_window == 0;
    for (int i = 0; i < request.count; ++i) placed &= request.sequences[i].shift_count == 0;
    return placed && follows_descriptions(layer_, request) && request.count <= kInlineSequences;
  }
  void capture(const AttentionRequest& request, const QueryMemory& memory, cudaStream_t stream) override {
    const DeviceQueue& queue = layer_.queue();
    CommVqGather gather = {};
    gather.count = request.count;
    gather.sinks = layer_.plan().sinks;
    const std::vector<const DeviceSequence*> sequences = descriptions(request);
    std::copy(sequences.begin(), sequences.end(), gather.sequences);
    for (int i = 0; i < request.count; ++i) gather.pages += request.sequences[i].page_count + kMorePages;
    Captured made = {{queue, [&](CommVqPlan* planned) { return plan(request.count, gather.pages, planned); }},
                     queue.take(sizeof(CommVqSequence) * kInlineSequences + sizeof(uint32_t))};
    gather.out = made.sequences.as<CommVqSequence>();
    gather.out_of_room = reinterpret_cast<uint32_t*>(gather.out + kInlineSequences);
    check(cudaStreamSynchronize(queue.stream), "making ready for a graph");
    check(launch_commvq_gather(gather, stream), "gathering sequences");
    launch(made.launch.planned(), request, memory, gather.out, stream);
    const int64_t elements =
        int64_t{request.count} * request.layer->query_heads * static_cast<int64_t>(request.layer->head_dim);
    check(launch_commvq_spoil(gather.out_of_room, memory.outputs, memory.type, elements, stream), "CommVQ's attention");
    captured_.push_back(std::move(made));
  }

 private:
  // Pages of each sequence that a graph has room for beyond those of today.
  static constexpr int64_t kMorePages = 256;
  // What a graph keeps.
  struct Captured {
    CapturedLaunch<CommVqPlan> launch;
    DeviceScratch sequences;
  };

  cudaError_t plan(int sequences, int64_t pages, CommVqPlan* made) const {
    const AttentionLayer& attention = layer_.plan().attention;
    const int codes = static_cast<const CommVqValues&>(at(Side::kValues)).model().page.codes;
    return plan_commvq({key_layout_, attention.pairs, attention.group(), codes, sequences, pages}, made);
  }
  void launch(const PlannedLaunch<CommVqPlan>& planned, const AttentionRequest& request, const QueryMemory& memory,
              const CommVqSequence* sequences, cudaStream_t stream) const {
    auto launch = launch_of<CommVqRequest>(request, memory, planned.workspace);
    launch.sequences = sequences;
    launch.key_tables = key_tables_.as<uint8_t>();
    launch.value_tables = static_cast<const CommVqValues&>(at(Side::kValues)).tables();
    check(launch_commvq(planned.plan, launch, stream), "CommVQ's attention");
  }

  // All sequences, then the shifts of all of them.
  DeviceScratch describe(const AttentionRequest& request, const std::vector<DeviceSequence>& seen) const {
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
      const DeviceSequence& known = seen[static_cast<size_t>(i)];
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
  std::vector<Captured> captured_;
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
