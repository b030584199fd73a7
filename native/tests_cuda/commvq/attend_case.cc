#include "commvq/attend_case.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>

#include "kernels/cuda/commvq/tables.h"
#include "reference/attention.h"
#include "reference/commvq.h"
#include "reference/half.h"

namespace commvq_case {
namespace {

using namespace kvasir::cuda;

uint16_t half_of(double x) { return reference::half_nearest(x); }

int first_channel(const Setting& s, int j) { return s.pairs == kvasir::RopePairs::kHalves ? j : 2 * j; }
int second_channel(const Setting& s, int j) {
  return s.pairs == kvasir::RopePairs::kHalves ? j + s.head_dim / 2 : 2 * j + 1;
}

// The bit of row n and token t in a plane of one bit, x the tokens (docs/format.md).
int plane_bit(const uint8_t* plane, int n, int t) {
  const size_t vector = static_cast<size_t>(n / 16) * 4 + t / 32;
  return plane[64 * vector + 4 * (n % 16) + t % 4] >> (t % 32 / 4) & 1;
}

uint16_t bfloat_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace

std::string Setting::describe() const {
  std::ostringstream text;
  text << "kv=" << kv_heads << " group=" << group << " d=" << head_dim << " stages=" << stages << " entries=" << entries
       << " codes=" << codes << " pairs=" << static_cast<int>(pairs) << " precision=" << static_cast<int>(precision)
       << " type=" << static_cast<int>(type) << " fall=" << fall << " uniform=" << uniform << " mean=" << mean
       << " whole=" << whole << " gain=" << gain << " growth=" << growth;
  return text.str();
}

namespace {

// An entry as a table has it that was trained to be of bytes: steps of a pair are 4 to 7 times a power of two, stages
// count in powers of two of them, which are each head's own, and large numbers have eight bits, so that times a step
// they are float16 numbers.
double whole_entry(double x, double size, int head, int stage, int pair) {
  const double step = (4 + (pair + head) % 4) * std::exp2(std::ceil(std::log2(size / 40.0)) - 7.0);
  const double unit = step * (stage == 0 ? 1.0 : std::exp2(std::max(6 - head % 3 - stage / 2, 0)));
  const double most = stage == 0 ? 127 * 64 : 127;
  const double number = std::clamp(std::nearbyint(x / unit), -most, most);
  return (std::fabs(number) < 256 ? number : std::nearbyint(number / 32) * 32) * unit;
}

}  // namespace

KeyModel::KeyModel(const Setting& s, std::mt19937& random) {
  page = {s.kv_heads, s.stages, s.entries == 64 ? 6 : s.entries == 32 ? 5 : 4};
  head_dim = s.head_dim;
  entries = s.entries;
  pairs = s.pairs;
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform(-std::sqrt(3.0), std::sqrt(3.0));
  double all = 0.0;  // power of all stages, in units of the first one's
  for (int r = 0; r < s.stages; ++r) all += std::pow(s.fall, 2 * r);
  const int chunks = s.head_dim / 16;
  memory.resize(static_cast<size_t>(s.kv_heads) * chunks * s.stages * s.entries * 16);
  size_t at = 0;
  for (int h = 0; h < s.kv_heads; ++h) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int r = 0; r < s.stages; ++r) {
        for (int e = 0; e < s.entries; ++e) {
          for (int c = 0; c < 16; ++c) {
            const int pair = (chunk * 16 + c) % (s.head_dim / 2);
            const double pair_size = (pair % 13 == 3 ? 4.0 : 0.7) / std::sqrt(2.0 * all);
            const double size = pair_size * std::pow(s.fall, r);
            const double x = ((s.uniform ? uniform(random) : normal(random)) + (r == 0 ? s.mean : 0.0)) * size;
            memory[at++] = half_of(s.whole ? whole_entry(x, pair_size, h, r, pair) : x);
          }
        }
      }
    }
  }
  tables = memory.data();
}

ValueModel::ValueModel(const Setting& s, std::mt19937& random) {
  page = {s.codes};
  kv_heads = s.kv_heads;
  head_dim = s.head_dim;
  std::normal_distribution<double> normal;
  memory.resize(static_cast<size_t>(s.kv_heads) * s.codes * s.head_dim);
  for (uint16_t& half : memory) half = half_of(normal(random) / std::sqrt(s.codes / 4.0));
  tables = memory.data();
}

Scene::Scene(const Setting& s)
    : setting(s), random(s.seed), keys(setting, random), values(setting, random), gain_(s.gain) {
  for (int j = 0; j < s.head_dim / 2; ++j) frequencies.push_back(std::pow(500000.0, -2.0 * j / s.head_dim));
}

Page Scene::make_page() {
  const Setting& s = setting;
  const int d = s.head_dim, half = d / 2, bits = keys.page.index_bits;
  const size_t head_bytes = static_cast<size_t>(s.stages) * 128 * 2 * bits / 8;
  const size_t key_bytes = (256 + s.kv_heads * head_bytes + 63) / 64 * 64;
  Page made;
  made.bytes.assign(key_bytes + 256 + static_cast<size_t>(s.codes) * 16, 0);
  std::uniform_int_distribution<int> byte(0, 255);
  std::normal_distribution<double> normal;
  for (size_t i = 256; i < 256 + s.kv_heads * head_bytes; ++i) made.bytes[i] = static_cast<uint8_t>(byte(random));
  for (size_t i = key_bytes + 256; i < made.bytes.size(); ++i) made.bytes[i] = static_cast<uint8_t>(byte(random));
  std::vector<double> norms, gains;
  for (int t = 0; t < 128; ++t) {
    const uint16_t norm = half_of(std::exp(0.3 * normal(random)));
    const uint16_t gain = half_of((t % 9 == 4 ? -0.5 : 1.0) * gain_ * std::exp(0.5 * normal(random)));
    std::memcpy(made.bytes.data() + 2 * t, &norm, 2);
    std::memcpy(made.bytes.data() + key_bytes + 2 * t, &gain, 2);
    norms.push_back(reference::half_value(norm));
    gains.push_back(reference::half_value(gain));
  }
  gain_ *= s.growth;
  const size_t row = static_cast<size_t>(s.kv_heads) * d;
  made.keys.assign(128 * row, 0.0);
  made.values.assign(128 * row, 0.0);
  const auto entry = [&](int h, int stage, int e, int channel) {
    const size_t place = ((static_cast<size_t>(h) * (d / 16) + channel / 16) * s.stages + stage) * s.entries + e;
    return reference::half_value(keys.memory[place * 16 + channel % 16]);
  };
  for (int t = 0; t < 128; ++t) {
    for (int h = 0; h < s.kv_heads; ++h) {
      for (int j = 0; j < half; ++j) {
        std::complex<double> sum = 0.0;
        for (int r = 0; r < s.stages; ++r) {
          const auto code = reference::key_code(made.bytes.data() + 256, s.kv_heads, s.stages, s.entries, t, h, r);
          sum += std::complex<double>(entry(h, r, code.a, j), entry(h, r, code.a, half + j));
          sum +=
              std::complex<double>(0, 1) * std::complex<double>(entry(h, r, code.b, j), entry(h, r, code.b, half + j));
        }
        made.keys[t * row + static_cast<size_t>(h) * d + first_channel(s, j)] = sum.real() * norms[t];
        made.keys[t * row + static_cast<size_t>(h) * d + second_channel(s, j)] = sum.imag() * norms[t];
      }
    }
  }
  std::vector<double> table;
  for (const uint16_t x : values.memory) table.push_back(reference::half_value(x));
  for (int t = 0; t < 128; ++t) {
    for (int n = 0; n < s.codes; ++n) {
      if (plane_bit(made.bytes.data() + key_bytes + 256, n, t) == 0) continue;
      for (int h = 0; h < s.kv_heads; ++h) {
        const double* from = table.data() + (static_cast<size_t>(h) * s.codes + n) * d;
        double* to = made.values.data() + t * row + static_cast<size_t>(h) * d;
        for (int c = 0; c < d; ++c) to[c] += from[c] * gains[t];
      }
    }
  }
  return made;
}

Batch::Batch(const Setting& setting) : scene_(setting), setting_(scene_.setting) {
  KeyTableLayout layout = {};
  CUDA(plan_key_tables(scene_.keys, setting_.precision, &layout));
  std::vector<uint8_t> tables(layout.bytes());
  pack_key_tables(scene_.keys, layout, scene_.frequencies.data(), setting_.magnitude, tables.data());
  int64_t pages = 0;
  for (const Length& length : setting_.lengths) pages += length.pages;
  CommVqShape shape = {};
  shape.tables = layout;
  shape.pairs = setting_.pairs;
  shape.group = setting_.group;
  shape.codes = setting_.codes;
  shape.sequences = static_cast<int>(setting_.lengths.size());
  shape.pages = pages;
  CUDA(plan_commvq(shape, &plan_));
  shape.generic = true;
  CUDA(plan_commvq(shape, &generic_plan_));
  int distinct = 0;
  for (const Length& length : setting_.lengths) distinct = std::max(distinct, std::min(length.pages, kDistinctPages));
  for (int i = 0; i < distinct; ++i) {
    pages_.push_back(scene_.make_page());
    device_pages_.push_back(
        static_cast<const uint8_t*>(upload(pages_.back().bytes.data(), pages_.back().bytes.size())));
  }
  for (const Length& length : setting_.lengths) sequences_.push_back(build(length));
  std::vector<CommVqSequence> descriptions;
  for (const Sequence& sequence : sequences_) descriptions.push_back(sequence.device);

  const size_t numbers = sequences_.size() * setting_.kv_heads * setting_.group * setting_.head_dim;
  std::normal_distribution<float> normal;
  std::vector<uint16_t> narrow;
  for (size_t i = 0; i < numbers; ++i) {
    const float x = normal(scene_.random);
    if (setting_.type == kvasir::ElementType::kFloat32) {
      queries_.push_back(x);
    } else if (setting_.type == kvasir::ElementType::kFloat16) {
      narrow.push_back(half_of(x));
      queries_.push_back(static_cast<float>(reference::half_value(narrow.back())));
    } else {
      narrow.push_back(bfloat_bits(x));
      queries_.push_back(static_cast<float>(reference::bfloat_value(narrow.back())));
    }
  }
  request_.sequences =
      static_cast<const CommVqSequence*>(upload(descriptions.data(), descriptions.size() * sizeof(CommVqSequence)));
  request_.count = static_cast<int>(sequences_.size());
  request_.queries = narrow.empty() ? upload(queries_.data(), 4 * numbers) : upload(narrow.data(), 2 * numbers);
  const std::vector<uint8_t> poison(4 * numbers + 4, 0xff);
  request_.outputs = upload(poison.data(), poison.size());
  request_.type = setting_.type;
  request_.softmax_scale = 1.0f / std::sqrt(static_cast<float>(setting_.head_dim));
  request_.key_tables = static_cast<const uint8_t*>(upload(tables.data(), tables.size()));
  request_.value_tables =
      static_cast<const uint16_t*>(upload(scene_.values.memory.data(), 2 * scene_.values.memory.size()));
  void* workspace = nullptr;
  const size_t workspace_bytes = std::max(plan_.workspace_bytes, generic_plan_.workspace_bytes);
  CUDA(cudaMalloc(&workspace, workspace_bytes));
  memory_.push_back(workspace);
  CUDA(clear_workspace(plan_, workspace, nullptr));
  request_.workspace = workspace;
}

Batch::~Batch() {
  for (void* memory : memory_) cudaFree(memory);
}

void* Batch::upload(const void* bytes, size_t count) {
  void* memory = nullptr;
  CUDA(cudaMalloc(&memory, std::max<size_t>(count, 16)));
  if (count > 0) CUDA(cudaMemcpy(memory, bytes, count, cudaMemcpyHostToDevice));
  memory_.push_back(memory);
  return memory;
}

// A token as attention must see it: its key turned by its position.
void Batch::see(Sequence& sequence, const Length& length, const double* key, const double* value, int64_t token) {
  const Setting& s = setting_;
  int64_t position = token;
  for (const TokenShift& shift : length.shifts) {
    if (shift.first <= token) position = token + shift.offset;
  }
  const size_t at = sequence.keys.size();
  sequence.keys.resize(at + static_cast<size_t>(s.kv_heads) * s.head_dim);
  for (int h = 0; h < s.kv_heads; ++h) {
    const double* from = key + static_cast<size_t>(h) * s.head_dim;
    float* to = sequence.keys.data() + at + static_cast<size_t>(h) * s.head_dim;
    for (int j = 0; j < s.head_dim / 2; ++j) {
      const std::complex<double> turned =
          std::complex<double>(from[first_channel(s, j)], from[second_channel(s, j)]) *
          std::polar(s.magnitude, static_cast<double>(position) * scene_.frequencies[static_cast<size_t>(j)]);
      to[first_channel(s, j)] = static_cast<float>(turned.real());
      to[second_channel(s, j)] = static_cast<float>(turned.imag());
    }
  }
  for (int i = 0; i < s.kv_heads * s.head_dim; ++i) sequence.values.push_back(static_cast<float>(value[i]));
}

RowSpan Batch::add_rows(Sequence& sequence, const Length& length, int hidden, int count, int64_t token) {
  const int heads = setting_.kv_heads, d = setting_.head_dim, rows = hidden + count;
  const RowTileLayout layout = {d};
  const int tiles = (rows + kTileSize - 1) / kTileSize + 1;
  const size_t block_bytes = static_cast<size_t>(heads) * layout.bytes();
  std::vector<uint8_t> bytes(block_bytes * tiles, 0);
  const auto offset = [&](int tile) { return static_cast<size_t>(tiles - 1 - tile) * block_bytes; };
  std::normal_distribution<double> normal;
  for (int t = 0; t < rows; ++t) {
    std::vector<double> key, value;
    for (int h = 0; h < heads; ++h) {
      uint8_t* tile = bytes.data() + offset(t / kTileSize) + static_cast<size_t>(h) * layout.bytes();
      for (int c = 0; c < d; ++c) {
        const uint16_t k = half_of(normal(scene_.random)), v = half_of(normal(scene_.random));
        std::memcpy(tile + layout.key_byte(t % kTileSize, c), &k, 2);
        std::memcpy(tile + layout.value_byte(t % kTileSize, c), &v, 2);
        key.push_back(reference::half_value(k));
        value.push_back(reference::half_value(v));
      }
    }
    if (t >= hidden) see(sequence, length, key.data(), value.data(), token + t);
  }
  const auto memory = reinterpret_cast<uint64_t>(upload(bytes.data(), bytes.size()));
  std::vector<uint64_t> blocks;
  for (int tile = 0; tile < tiles; ++tile) blocks.push_back(memory + offset(tile));
  return {static_cast<const uint64_t*>(upload(blocks.data(), 8 * blocks.size())), hidden, rows};
}

Batch::Sequence Batch::build(const Length& length) {
  Sequence sequence;
  CommVqSequence& device = sequence.device;
  const size_t row = static_cast<size_t>(setting_.kv_heads) * setting_.head_dim;
  if (length.sinks > 0) device.sinks = add_rows(sequence, length, 0, length.sinks, 0);
  std::vector<const uint8_t*> table;
  device.page_token = length.page_token > 0 ? length.page_token : length.sinks;
  for (int p = 0; p < length.pages; ++p) {
    const int which = (p * 5 + p / 7) % static_cast<int>(pages_.size());
    table.push_back(device_pages_[static_cast<size_t>(which)]);
    const Page& page = pages_[static_cast<size_t>(which)];
    for (int t = p == 0 ? length.hidden : 0; t < 128; ++t) {
      see(sequence, length, page.keys.data() + t * row, page.values.data() + t * row, device.page_token + 128 * p + t);
    }
  }
  device.pages = static_cast<const uint8_t* const*>(upload(table.data(), sizeof(table[0]) * table.size()));
  device.page_count = length.pages;
  device.hidden_tokens = length.hidden;
  device.window_token = device.page_token + 128 * length.pages - length.window_begin;
  if (length.window > 0) {
    device.window = add_rows(sequence, length, length.window_begin, length.window, device.window_token);
  }
  device.shifts =
      static_cast<const TokenShift*>(upload(length.shifts.data(), sizeof(TokenShift) * length.shifts.size()));
  device.shift_count = static_cast<int64_t>(length.shifts.size());
  return sequence;
}

CommVqRequest Batch::request() const { return request_; }

std::vector<float> Batch::attend(bool generic) {
  const size_t numbers = queries_.size(), width = setting_.type == kvasir::ElementType::kFloat32 ? 4 : 2;
  const CommVqPlan& plan = generic ? generic_plan_ : plan_;
  CUDA(cudaMemset(request_.outputs, 0xff, width * numbers));
  // What an earlier launch has left must not be taken for this one's.
  CUDA(cudaMemset(static_cast<uint8_t*>(request_.workspace) + plan.scores_offset, 0xff,
                  plan.workspace_bytes - plan.scores_offset));
  CUDA(launch_commvq(plan, request_, nullptr));
  CUDA(cudaDeviceSynchronize());
  std::vector<uint8_t> bytes(width * numbers);
  CUDA(cudaMemcpy(bytes.data(), request_.outputs, bytes.size(), cudaMemcpyDeviceToHost));
  std::vector<float> out(numbers);
  for (size_t i = 0; i < numbers; ++i) {
    uint16_t half = 0;
    std::memcpy(width == 4 ? static_cast<void*>(&out[i]) : &half, bytes.data() + width * i, width);
    if (setting_.type == kvasir::ElementType::kFloat16) out[i] = static_cast<float>(reference::half_value(half));
    if (setting_.type == kvasir::ElementType::kBFloat16) out[i] = static_cast<float>(reference::bfloat_value(half));
  }
  return out;
}

std::vector<double> Batch::expected() const {
  const Setting& s = setting_;
  const int query_heads = s.kv_heads * s.group;
  const size_t row = static_cast<size_t>(query_heads) * s.head_dim;
  std::vector<double> out;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const Sequence& sequence = sequences_[i];
    const int64_t tokens = static_cast<int64_t>(sequence.keys.size()) / s.kv_heads / s.head_dim;
    std::vector<double> one(row, 0.0);
    if (tokens > 0) {
      one = reference::attention({query_heads, s.kv_heads, s.head_dim}, sequence.keys.data(), sequence.values.data(), 0,
                                 tokens, queries_.data() + i * row, 1);
    }
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

bool Batch::workspace_is_clear() const {
  std::vector<uint8_t> bytes(plan_.scores_offset);
  CUDA(cudaMemcpy(bytes.data(), request_.workspace, bytes.size(), cudaMemcpyDeviceToHost));
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0; });
}

}  // namespace commvq_case
