// Times attention on packed pages: microseconds, GB/s of stored bytes, and the error against double.
//
//   attend_bench [--kv-heads 8] [--group 4] [--head-dim 128] [--contexts 8192,32768,131072] [--batches 1,16]
//                [--kinds f16,uniform:2,progressive:2,pattern:2,...] [--window 0] [--patterns 32] [--added 0]
//                [--lengths 100,5000,...] [--json FILE] [--consumers N] [--slots N] [--check 1] [--settled 1]
//
// --lengths is a batch of sequences of these lengths, in place of those of --contexts and --batches; it is followed by
// one of as many equal sequences with as many pages and rows in all. Tokens that fill no page are 16-bit rows.
// --check 0 leaves out the comparison with double, which takes seconds on the host.
// --patterns is how many patterns sequences have; with --added 1 every page adds one, and labels are any that it sees.
// --settled 0: descriptions are read when the launch before has ended, not as in a graph, which leaves them as they
// are.
// --consumers and --slots divide a block's shared memory otherwise than the plan would, to see what it is worth.
// Pages are random. Launches go round enough copies of the batch that none finds its pages in the L2 cache. A graph of
// launches is replayed and timed with events; the figure is the median over replays, the spread is (90th - 10th) /
// median.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "arguments.h"
#include "base/half.h"
#include "fill.cuh"
#include "json_rows.h"
#include "kernels/cuda/attend/attend.h"
#include "launch_timing.h"

namespace {

using namespace kvasir::cuda;

// One row of the table.
struct Kind {
  std::string codec;
  int bits;

  bool labels() const { return codec == "pattern"; }
  HeadLayout layout(int head_dim) const {
    const bool tokens = codec == "progressive";
    const int width = tokens && bits == 16 ? kWideBits : bits;
    const bool cells = codec != "f16" && codec != "uniform-ends" && (tokens || bits <= 2);  // as the codecs have it
    return {head_dim, width, width, tokens, labels(), cells, cells};
  }
};

std::vector<Kind> kinds(const std::string& text) {
  std::vector<Kind> list;
  for (size_t at = 0; at < text.size();) {
    const std::string one = text.substr(at, text.find(',', at) - at);
    const size_t colon = one.find(':');
    list.push_back({one.substr(0, colon), colon == std::string::npos ? 16 : std::atoi(one.c_str() + colon + 1)});
    at += one.size() + 1;
  }
  return list;
}

struct Options {
  int kv_heads = 8, group = 4, head_dim = 128, window = 0, consumers = 0, slots = 0, check = 1, settled = 1;
  std::vector<int> contexts = {8192, 32768, 131072}, batches = {1, 16}, lengths;
  std::vector<Kind> kinds;
  int patterns = 32, added = 0;
  std::string json;
};

Options parse(int argc, char** argv) {
  Options options;
  std::string wanted =
      "f16,uniform:8,uniform:4,uniform:3,uniform:2,uniform-ends:2,uniform:1,progressive:16,progressive:8,progressive:4,"
      "progressive:2,pattern:4,pattern:2";
  bench::parse(argc, argv,
               {{"--kv-heads", &options.kv_heads},
                {"--group", &options.group},
                {"--head-dim", &options.head_dim},
                {"--window", &options.window},
                {"--contexts", &options.contexts},
                {"--batches", &options.batches},
                {"--lengths", &options.lengths},
                {"--kinds", &wanted},
                {"--patterns", &options.patterns},
                {"--added", &options.added},
                {"--json", &options.json},
                {"--consumers", &options.consumers},
                {"--slots", &options.slots},
                {"--check", &options.check},
                {"--settled", &options.settled}});
  options.kinds = kinds(wanted);
  if (options.added != 0 && !options.lengths.empty()) {
    std::fprintf(stderr, "--added knows equal sequences only\n");
    std::exit(2);
  }
  return options;
}

// One element of a part, decoded by the layout's definition.
double element(const PartLayout& part, bool cells, const uint8_t* bytes, int x, int y) {
  uint16_t halves[2];
  if (part.bits == kFloat16Bits) {
    std::memcpy(halves, bytes + part.float16_byte(x, y), 2);
    return kvasir::half_to_float(halves[0]);
  }
  int code = 0;
  for (int plane = 0; plane < part.planes(); ++plane) {
    const Place place = part.code_place(plane, x, y);
    const int mask = (1 << part.plane_bits(plane)) - 1;
    code |= (bytes[part.parameter_bytes() + place.byte] >> place.bit & mask) << part.plane_shift(plane);
  }
  std::memcpy(halves, bytes + part.parameter_byte(part.y_parameters ? y : x), 4);
  const double steps = (1 << part.element_bits()) - (cells ? 0 : 1);
  return kvasir::half_to_float(halves[1]) + (code + (cells ? 0.5 : 0.0)) * kvasir::half_to_float(halves[0]) / steps;
}

// What a sequence consists of.
struct Length {
  int pages, rows;

  static Length of(int tokens, int window) {
    const int pages = std::max(tokens - window, 0) / kvasir::kPageTokens;
    return {pages, tokens - pages * kvasir::kPageTokens};
  }
  int tokens() const { return pages * kvasir::kPageTokens + rows; }
};

// Batches of one table: of contexts and batch sizes, or of given lengths and of equal ones.
std::vector<std::vector<Length>> batches(const Options& options) {
  std::vector<std::vector<Length>> made;
  if (options.lengths.empty()) {
    for (const int count : options.batches) {
      for (const int context : options.contexts) made.emplace_back(count, Length::of(context, options.window));
    }
    return made;
  }
  std::vector<Length> given;
  int pages = 0, rows = 0;
  for (const int tokens : options.lengths) {
    given.push_back(Length::of(tokens, options.window));
    pages += given.back().pages;
    rows += given.back().rows;
  }
  const int count = static_cast<int>(given.size());
  made.push_back(given);
  made.emplace_back(count, Length{(pages + count / 2) / count, (rows + count / 2) / count});
  return made;
}

// All copies of one batch, and what launches need.
class Batch {
 public:
  Batch(const Options& options, const Kind& kind, std::vector<Length> lengths)
      : options_(options),
        layout_(kind.layout(options.head_dim)),
        lengths_(std::move(lengths)),
        count_(static_cast<int>(lengths_.size())) {
    int most_pages = 1, most_rows = 0;
    for (const Length& length : lengths_) {
      first_page_.push_back(pages_);
      pages_ += length.pages;
      row_tokens_ += length.rows;
      most_pages = std::max(most_pages, length.pages);
      most_rows = std::max(most_rows, length.rows);
    }
    const int count = count_;
    labels_ = {layout_.labels ? options.patterns : 0, options.added != 0, most_pages, options.kv_heads};
    block_bytes_ = layout_.bytes();
    CUDA(plan_attend({options.head_dim, options.kv_heads, options.group, count, layout_.labels}, &plan_));
    for (AttendBlock& block : plan_.block_of) {
      const int slots = block.consumers * block.slots;
      if (options.consumers > 0) block.consumers = std::min(block.consumers, options.consumers);
      if (options.slots > 0) block.slots = std::min(slots / block.consumers, options.slots);
    }
    const size_t page_bytes = static_cast<size_t>(block_bytes_) * options.kv_heads;
    set_bytes_ = page_bytes * pages_;
    // 50 to 60 MB of L2: three times that between two uses of a page.
    sets_ = static_cast<int>(std::max<size_t>(2, (180u << 20) / std::max<size_t>(set_bytes_, 1 << 20) + 1));
    blocks_ = memory_.take<uint8_t>(set_bytes_ * sets_);
    fill();
    vectors_ = labels_.fixed + (options.added ? most_pages : 0);
    table_bytes_ = VectorTableLayout{options.head_dim}.bytes(vectors_) * options.kv_heads;
    if (layout_.labels) {
      const size_t all = static_cast<size_t>(table_bytes_) * 2 * count * sets_;
      tables_ = memory_.take<uint8_t>(all);
      bench::fill_halves<<<1024, 256>>>(reinterpret_cast<__half*>(tables_), static_cast<int64_t>(all / 2), 999);
      CUDA(cudaGetLastError());
    }
    const RowTileLayout tile = {options.head_dim};
    const size_t tile_bytes = static_cast<size_t>(tile.bytes()) * options.kv_heads;
    const size_t row_bytes = (most_rows + kTileSize - 1) / kTileSize * tile_bytes;
    rows_ = memory_.take<uint8_t>(row_bytes * count + 16);
    CUDA(cudaMemset(rows_, kRowByte, row_bytes * count + 16));
    for (int set = 0; set < sets_; ++set) {
      std::vector<DeviceSequence> sequences;
      for (int s = 0; s < count; ++s) {
        std::vector<uint64_t> references;
        for (int p = 0; p < lengths_[s].pages; ++p) references.push_back(page_reference(page(set, s, p), 0));
        DeviceSequence sequence = {};
        sequence.pages = memory_.copy(references);
        sequence.page_count = lengths_[s].pages;
        std::vector<uint64_t> blocks;
        for (int i = 0; i * kTileSize < lengths_[s].rows; ++i) {
          blocks.push_back(reinterpret_cast<uint64_t>(rows_ + row_bytes * s + i * tile_bytes));
        }
        sequence.window = {memory_.copy(blocks), 0, lengths_[s].rows};
        if (layout_.labels) {
          const int64_t stride = table_bytes_ / options.kv_heads;
          sequence.key_vectors = {table(set, s, 0), stride, labels_.fixed, vectors_ - labels_.fixed, 0, 0};
          sequence.value_vectors = {table(set, s, 1), stride, labels_.fixed, vectors_ - labels_.fixed, 0, 0};
        }
        sequences.push_back(sequence);
      }
      DeviceSequence* const descriptions = memory_.copy(sequences);
      addresses_.emplace_back();
      for (int s = 0; s < count; ++s) addresses_.back().push_back(descriptions + s);
      listed_.push_back(memory_.copy(addresses_.back()));
    }
    for (size_t i = 0; i < static_cast<size_t>(count) * options.kv_heads * options.group * options.head_dim; ++i) {
      queries_host_.push_back(3.0f * unit(hashed(i + 77)));
    }
    queries_ = memory_.copy(queries_host_);
    outputs_ = memory_.take<float>(queries_host_.size());
    workspace_ = memory_.take<uint8_t>(plan_.workspace_bytes);
    CUDA(clear_workspace(plan_, workspace_, nullptr));
    room_vectors_ = (vectors_ + kTileSize - 1) / kTileSize * kTileSize;
    room_ = memory_.take<uint8_t>(vector_room_bytes(plan_, room_vectors_));
    CUDA(cudaDeviceSynchronize());
  }

  size_t bytes() const {
    return set_bytes_ + static_cast<size_t>(2) * 2 * row_tokens_ * options_.head_dim * options_.kv_heads;
  }
  int mean_length() const {
    return static_cast<int>((static_cast<int64_t>(pages_) * kvasir::kPageTokens + row_tokens_) / count_);
  }
  void launch(int set, cudaStream_t stream) const {
    const bool listed = count_ > kInlineSequences;
    AttendRequest request = {listed ? listed_[set % sets_] : addresses_[set % sets_].data(),
                             listed,
                             count_,
                             queries_,
                             outputs_,
                             kvasir::ElementType::kFloat32,
                             1.0f / std::sqrt(static_cast<float>(options_.head_dim)),
                             &layout_,
                             1,
                             workspace_,
                             room_,
                             room_vectors_};
    request.settled = options_.settled != 0;
    CUDA(launch_attend(plan_, request, stream));
  }

  // Error of the last sequence's last kv head, against double.
  double error() const {
    const int d = options_.head_dim, group = options_.group;
    CUDA(cudaMemset(outputs_, 0xff, 4 * queries_host_.size()));
    launch(0, nullptr);
    std::vector<float> outputs(queries_host_.size());
    CUDA(cudaMemcpy(outputs.data(), outputs_, 4 * outputs.size(), cudaMemcpyDeviceToHost));
    const Length& length = lengths_.back();
    const double row_element = kvasir::half_to_float(kRowByte << 8 | kRowByte);
    std::vector<double> keys(static_cast<size_t>(length.tokens()) * d, row_element), values = keys;
    decode_pages(keys, values);
    double wrong = 0.0, power = 0.0;
    const size_t tokens = keys.size() / d;
    for (int h = 0; h < group; ++h) {
      const size_t row = queries_host_.size() - static_cast<size_t>(group - h) * d;
      std::vector<double> scores(tokens), out(d, 0.0);
      for (size_t t = 0; t < tokens; ++t) {
        double dot = 0.0;
        for (int c = 0; c < d; ++c) dot += keys[t * d + c] * queries_host_[row + c];
        scores[t] = dot / std::sqrt(static_cast<double>(d));
      }
      const double highest = *std::max_element(scores.begin(), scores.end());
      double sum = 0.0;
      for (double& s : scores) sum += s = std::exp(s - highest);
      for (size_t t = 0; t < tokens; ++t) {
        for (int c = 0; c < d; ++c) out[c] += scores[t] / sum * values[t * d + c];
      }
      for (int c = 0; c < d; ++c) {
        wrong += (outputs[row + c] - out[c]) * (outputs[row + c] - out[c]);
        power += out[c] * out[c];
      }
    }
    return wrong / power;
  }

 private:
  static constexpr int kRowByte = 0x11;  // of which rows consist

  // Pages of the last sequence's last kv head.
  void decode_pages(std::vector<double>& keys, std::vector<double>& values) const {
    const int d = options_.head_dim;
    std::vector<uint8_t> bytes(block_bytes_), tables(layout_.labels ? 2 * table_bytes_ : 0);
    if (layout_.labels) CUDA(cudaMemcpy(tables.data(), table(0, count_ - 1, 0), tables.size(), cudaMemcpyDeviceToHost));
    const int64_t head_table = (options_.kv_heads - 1) * (table_bytes_ / options_.kv_heads);
    const VectorTableLayout vectors = {d};
    for (int p = 0; p < lengths_.back().pages; ++p) {
      CUDA(cudaMemcpy(bytes.data(), page(0, count_ - 1, p) + static_cast<size_t>(options_.kv_heads - 1) * block_bytes_,
                      bytes.size(), cudaMemcpyDeviceToHost));
      const uint8_t* block = bytes.data() + layout_.label_bytes();
      // Label l > fixed means vector l - 1 + shift (docs/format.md).
      const int shift = options_.added ? std::max(0, p + 1 - (kMaxVisible - labels_.fixed)) : 0;
      auto vector = [&](int label) { return label <= labels_.fixed ? label - 1 : label - 1 + shift; };
      for (int t = 0; t < kvasir::kPageTokens; ++t) {
        const int key_label = layout_.labels ? bytes[key_label_byte(t)] : 0;
        const int value_label = layout_.labels ? bytes[value_label_byte(t)] : 0;
        for (int c = 0; c < d; ++c) {
          const size_t i = (static_cast<size_t>(p) * kvasir::kPageTokens + t) * d + c;
          const int span = layout_.key().x_size;
          keys[i] = element(layout_.key(), layout_.key_cells, block + layout_.key_offset(c / span), c % span, t);
          values[i] = element(layout_.value(), layout_.value_cells, block + layout_.value_offset(c / kValueSpan), t,
                              c % kValueSpan);
          uint16_t half;
          if (key_label > 0) {
            std::memcpy(&half, tables.data() + head_table + vectors.key_byte(vector(key_label), c), 2);
            keys[i] += kvasir::half_to_float(half);
          }
          if (value_label > 0) {
            const uint8_t* from = tables.data() + table_bytes_ + head_table;
            std::memcpy(&half, from + vectors.value_byte(vector(value_label), c), 2);
            values[i] += kvasir::half_to_float(half);
          }
        }
      }
    }
  }

  uint8_t* page(int set, int sequence, int page) const {
    return blocks_ +
           (static_cast<size_t>(set) * pages_ + first_page_[sequence] + page) * block_bytes_ * options_.kv_heads;
  }
  uint8_t* table(int set, int sequence, int side) const {
    return tables_ + ((static_cast<size_t>(set) * count_ + sequence) * 2 + side) * table_bytes_;
  }
  void fill() {
    const int64_t count = static_cast<int64_t>(set_bytes_ * sets_ / block_bytes_);
    bench::fill_blocks<<<2048, 256>>>(blocks_, count, layout_, labels_, 12345);
    CUDA(cudaGetLastError());
  }
  static uint32_t hashed(uint64_t x) { return bench::hashed(x); }
  static float unit(uint32_t x) { return bench::unit(x); }

  const Options& options_;
  const HeadLayout layout_;
  const std::vector<Length> lengths_;
  const int count_;
  std::vector<int> first_page_;     // of each sequence, in a set
  int pages_ = 0, row_tokens_ = 0;  // of all sequences
  bench::Labels labels_ = {};
  int block_bytes_ = 0, vectors_ = 0;
  int64_t table_bytes_ = 0;  // of one side of a sequence
  uint8_t* tables_ = nullptr;
  int sets_ = 0;
  size_t set_bytes_ = 0;
  AttendPlan plan_ = {};
  uint8_t* blocks_ = nullptr;
  uint8_t* rows_ = nullptr;
  std::vector<std::vector<const DeviceSequence*>> addresses_;  // [sets][count]
  std::vector<const DeviceSequence**> listed_;                 // the same in device memory
  bench::DeviceMemory memory_;
  std::vector<float> queries_host_;
  float* queries_ = nullptr;
  float* outputs_ = nullptr;
  uint8_t* workspace_ = nullptr;
  uint8_t* room_ = nullptr;
  int room_vectors_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  bench::print_command(argc, argv);
  std::printf("\n%s, %d query heads, %d kv heads, head dim %d, window %d\n", bench::device_name().c_str(),
              options.kv_heads * options.group, options.kv_heads, options.head_dim, options.window);
  std::printf("%11s %5s %8s %6s %10s %8s %8s %10s\n", "codec", "bits", "context", "batch", "us", "GB/s", "spread",
              "nmse");
  bench::JsonRows rows(options.json);
  for (const Kind& kind : options.kinds) {
    for (const std::vector<Length>& lengths : batches(options)) {
      const Batch batch(options, kind, lengths);
      const bench::Timing timing = bench::time_launches([&](int i, cudaStream_t stream) { batch.launch(i, stream); });
      const double error = options.check != 0 ? batch.error() : NAN;
      const double gbps = static_cast<double>(batch.bytes()) / timing.us / 1000.0;
      const int count = static_cast<int>(lengths.size()), context = batch.mean_length();
      std::printf("%11s %5d %8d %6d %10.2f %8.0f %7.1f%% %10.2e\n", kind.codec.c_str(), kind.bits, context, count,
                  timing.us, gbps, 100.0 * timing.spread, error);
      std::fflush(stdout);
      rows.add(options.added != 0 ? "added" : kind.codec.c_str(), kind.bits, context, count, timing.us, gbps);
    }
  }
  return 0;
}
