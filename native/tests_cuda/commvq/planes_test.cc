// Fast key tables of CommVQ: how they are cut into planes, and attention on them for tables of every kind.
#include "kernels/cuda/commvq/planes.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "commvq/attend_case.h"
#include "reference/attention.h"
#include "reference/half.h"
#include "support/commvq_scene.h"

namespace {

using namespace commvq_case;
using kvasir::cuda::KeyPrecision;
using kvasir::cuda::KeyTableLayout;
using kvasir::cuda::PlanePlan;

constexpr double kFastNmse = 1e-4;   // Precision::kFast (kvasir/config.h)
constexpr double kWholeNmse = 2e-6;  // where tables lose nothing: what float16 turns of keys and queries do
constexpr int kMostShared = 227 * 1024;

Setting setting_of(int head_dim, int stages, double fall, bool uniform, double mean = 0.0) {
  Setting s{2, 4, head_dim, stages, 64, 64};
  s.precision = KeyPrecision::kFast;
  s.fall = fall;
  s.uniform = uniform;
  s.mean = mean;
  return s;
}

Setting whole_of(int head_dim, int stages) {
  Setting s = setting_of(head_dim, stages, 0.84, false, 2.0);
  s.whole = true;
  return s;
}

KeyTableLayout layout_of(const KeyModel& model, int most_shared) {
  KeyTableLayout layout = {};
  layout.kv_heads = model.page.kv_heads;
  layout.head_dim = model.head_dim;
  layout.stages = model.page.stages;
  layout.entries = model.entries;
  layout.index_bits = model.page.index_bits;
  layout.element_bytes = 1;
  CHECK(plan_plane_tables(model, most_shared, &layout) == cudaSuccess, "planning");
  return layout;
}

// The model's entry as float16 tables have it.
double entry_of(const KeyModel& model, int head, int stage, int e, int channel) {
  const size_t chunk = static_cast<size_t>(head) * (model.head_dim / 16) + channel / 16;
  return reference::half_value(
      model.memory[((chunk * model.page.stages + stage) * model.entries + e) * 16 + channel % 16]);
}

// What packed tables say an entry is: the sum over the planes of its stage, by the layout that commvq/planes.h
// describes.
class PackedTables {
 public:
  PackedTables(const KeyModel& model, const KeyTableLayout& layout) : layout_(layout), bytes_(layout.bytes()) {
    const std::vector<double> frequencies(model.head_dim / 2, 0.5);
    pack_key_tables(model, layout, frequencies.data(), 1.0, bytes_.data());
  }
  double step(int head, int pair) const {
    float step;
    std::memcpy(&step, bytes_.data() + layout_.slice_offset(head, pair / 64, 0) + 512 + 4 * (pair % 64), 4);
    return step;
  }
  double entry(int head, int stage, int e, int pair, int part, int* planes, double* size) const {
    double sum = 0.0;
    *planes = 0;
    *size = 0.0;
    const auto add = [&](const uint8_t* slice, int label, int byte) {
      sum += byte * std::exp2(slice[804 + label]);
      *size = *planes == 0 ? std::exp2(slice[804 + label]) : 1.0;
      ++*planes;
    };
    const int column = 2 * (pair % 64) + part, block = column / 16;
    for (int i = 0; i < layout_.planes; ++i) {
      const int ss = i / layout_.slice_stages, p = i % layout_.slice_stages, folded = layout_.folded_planes;
      const uint8_t* slice = bytes_.data() + layout_.slice_offset(head, pair / 64, ss);
      // Folded planes come first, in copies, and are counted as a round of four.
      const int label = p < folded || folded == 0 ? p : p - folded + 4;
      if (slice[772 + label] != stage) continue;
      const auto byte = [&](int table) {
        const int begin = layout_.head_bytes() + table * (64 * 128 + 32) - (in_fours() ? table % 2 * 16 : 0);
        return static_cast<int8_t>(slice[begin + e * 128 + column]);
      };
      std::vector<int> tables = {label};
      if (p < folded) tables = folded == 1 ? std::vector<int>{0, 1, 2, 3} : std::vector<int>{p, p + 2};
      for (const int table : tables) CHECK(byte(table) == byte(tables[0]), "a copy is another: " << table);
      add(slice, label, byte(tables[0]));
    }
    for (int i = 0; i < layout_.low_planes; ++i) {
      const uint8_t* slice = bytes_.data() + layout_.slice_offset(head, pair / 64, 0);
      const int label = (tables_before_low() + 3) / 4 * 4 + i;
      if (slice[772 + label] != stage) continue;
      const int begin = layout_.head_bytes() + (tables_before_low() + i / 2) * (64 * 128 + 32) + i % 2 * 64;
      const uint8_t byte = slice[begin + e * 128 + block / 2 * 16 + column % 16];
      add(slice, label, block % 2 == 0 ? static_cast<int8_t>(byte) : byte >> 4);
    }
    return sum * step(head, pair);
  }

 private:
  int tables_before_low() const { return layout_.planes + (layout_.folded_planes > 0 ? 4 - layout_.folded_planes : 0); }
  // Whether blocks of 8 pairs come in fours.
  bool in_fours() const {
    const int blocks = (std::min(layout_.head_dim, 128) + 15) / 16;
    return (blocks + 1) / 2 % 2 == 0;
  }

  const KeyTableLayout layout_;
  std::vector<uint8_t> bytes_;
};

HOST_CASE("CommVQ planes: packed tables hold the model's entries, and lose what is promised") {
  const Setting settings[] = {setting_of(128, 11, 1.0, true),
                              setting_of(128, 22, 0.84, false),
                              setting_of(80, 7, 0.95, false),
                              setting_of(160, 5, 0.7, false, 3.0),
                              setting_of(32, 64, 1.0, false),
                              setting_of(128, 3, 0.05, true),
                              setting_of(128, 22, 0.84, true),
                              setting_of(48, 1, 1.0, false),
                              setting_of(128, 11, 1.0, false),
                              setting_of(112, 11, 0.84, false),
                              setting_of(128, 3, 0.95, false),
                              setting_of(128, 11, 0.84, false, 3.0),
                              whole_of(128, 11),
                              whole_of(128, 21),
                              whole_of(80, 7),
                              whole_of(64, 5),
                              whole_of(256, 12)};
  for (const Setting& s : settings) {
    std::mt19937 random(3);
    const KeyModel model(s, random);
    const KeyTableLayout layout = layout_of(model, kMostShared);
    const PackedTables packed(model, layout);
    const int pairs = s.head_dim / 2;
    double worst = 0.0, total = 0.0;
    for (int h = 0; h < s.kv_heads; ++h) {
      for (int j = 0; j < pairs; ++j) {
        double lost = 0.0, variance = 0.0;
        for (int r = 0; r < s.stages; ++r) {
          for (int part = 0; part < 2; ++part) {
            double sum = 0.0, squares = 0.0, wrong = 0.0;
            for (int e = 0; e < s.entries; ++e) {
              int planes;
              double size;
              const double value = entry_of(model, h, r, e, j + part * pairs);
              const double error = packed.entry(h, r, e, j, part, &planes, &size) - value;
              CHECK(planes == 1 || planes == 2, s.describe() << ": " << planes << " planes");
              worst = std::max(worst, std::fabs(error) / (size * packed.step(h, j)));
              sum += value;
              squares += value * value;
              wrong += error * error;
            }
            lost += wrong / s.entries;
            variance += squares / s.entries - sum * sum / s.entries / s.entries;
          }
        }
        total += lost / variance / (s.kv_heads * pairs);
      }
    }
    const PlanePlan plan(model, layout);
    std::printf("     %s: %d planes and %d low ones in %d slices, %.1e lost, %.1e planned\n", s.describe().c_str(),
                layout.planes, layout.low_planes, layout.slices(), total, plan.loss());
    // Steps are float32: numbers of up to 8128 are off by 2^-24 of themselves.
    CHECK(worst <= 0.501, s.describe() << ": an entry is off by " << worst << " of its plane's units");
    CHECK(static_cast<int>(plan.planes().size()) == layout.planes, s.describe());
    CHECK(static_cast<int>(plan.low_planes().size()) == layout.low_planes, s.describe());
    // Errors of rounding are uniform, so the plan is right but for chance.
    CHECK(plan.loss() <= kvasir::cuda::kPlaneTolerance, s.describe() << ": " << plan.loss());
    CHECK(std::fabs(total - plan.loss()) <= 0.2 * plan.loss(), s.describe() << ": " << total << ", " << plan.loss());
  }
}

HOST_CASE("CommVQ planes: as few as the tables allow") {
  const auto planes = [](const Setting& s) {
    std::mt19937 random(5);
    const KeyTableLayout layout = layout_of(KeyModel(s, random), kMostShared);
    return layout.planes + layout.low_planes;
  };
  const auto low_planes = [](const Setting& s) {
    std::mt19937 random(5);
    return layout_of(KeyModel(s, random), kMostShared).low_planes;
  };
  // Uniform entries of equal size fit one plane. What fills up the last round of four gets a second one, or two planes
  // that are left are folded.
  CHECK(planes(setting_of(128, 11, 1.0, true)) == 12, planes(setting_of(128, 11, 1.0, true)));
  CHECK(planes(setting_of(128, 22, 1.0, true)) == 22, planes(setting_of(128, 22, 1.0, true)));
  // Large first stages need two, the rest do not.
  CHECK(planes(setting_of(128, 22, 0.84, false)) <= 26, planes(setting_of(128, 22, 0.84, false)));
  CHECK(planes(setting_of(128, 22, 0.6, false)) <= 26, planes(setting_of(128, 22, 0.6, false)));
  CHECK(planes(setting_of(128, 22, 1.0, false)) > 28, "normal entries of equal size");
  // Second planes are low ones where that takes fewer look-ups.
  CHECK(low_planes(setting_of(128, 11, 0.84, false)) == 4, low_planes(setting_of(128, 11, 0.84, false)));
  CHECK(low_planes(setting_of(128, 11, 1.0, false)) == 8, low_planes(setting_of(128, 11, 1.0, false)));
  CHECK(low_planes(setting_of(128, 11, 1.0, true)) == 0, "one plane a stage");
  CHECK(low_planes(setting_of(80, 11, 1.0, false)) == 0, "blocks that do not come in fours");
}

HOST_CASE("CommVQ planes: entries that are whole numbers of steps are looked up once, and exactly") {
  for (const int stages : {3, 11, 21, 23}) {
    const Setting s = whole_of(128, stages);
    std::mt19937 random(7);
    KeyModel model(s, random);
    const KeyTableLayout layout = layout_of(model, kMostShared);
    // The first stage has two planes.
    CHECK(layout.planes == stages + 1 && layout.low_planes == 0, s.describe() << ": " << layout.planes);
    const PackedTables packed(model, layout);
    CHECK(PlanePlan(model, layout).loss() == 0.0, s.describe());
    for (int h = 0; h < s.kv_heads; ++h) {
      for (int i = 0; i < 64 * stages * 128; ++i) {
        const int e = i % 64, r = i / 64 % stages, channel = i / 64 / stages;
        int planes;
        double size;
        const double found = packed.entry(h, r, e, channel % 64, channel / 64, &planes, &size);
        const double wanted = entry_of(model, h, r, e, channel);
        CHECK(found == wanted, s.describe() << ": " << found << " for " << wanted);
      }
    }
    // One entry that is none of them, and tables are as any others.
    model.memory[1234] ^= 1;
    const KeyTableLayout others = layout_of(model, kMostShared);
    CHECK(others.planes + others.low_planes > stages + 1, s.describe());
    CHECK(PlanePlan(model, others).loss() > 0.0, s.describe());
  }
}

// Training is to make such tables.
HOST_CASE("CommVQ planes: trained tables have one plane a stage, and one more") {
  for (const int stages : {5, 11}) {
    const support::KeyTraining training = {2, 128, stages, 64, kvasir::RopePairs::kHalves, 1, 3};
    const std::vector<float> tables = training.train(support::correlated_rows(1, 2, 600, 2 * 128));
    Setting s = setting_of(128, stages, 1.0, false);
    std::mt19937 random(1);
    KeyModel model(s, random);
    for (size_t i = 0; i < tables.size(); ++i) {
      const size_t table = i / 128 / 64, h = table / stages, r = table % stages, e = i / 128 % 64, channel = i % 128;
      model.memory[(((h * 8 + channel / 16) * stages + r) * 64 + e) * 16 + channel % 16] =
          reference::half_nearest(tables[i]);
    }
    const KeyTableLayout layout = layout_of(model, kMostShared);
    CHECK(layout.planes == stages + 1 && layout.low_planes == 0, stages << ": " << layout.planes);
    CHECK(PlanePlan(model, layout).loss() == 0.0, stages);
  }
}

HOST_CASE("CommVQ planes: slices where shared memory is small, and entries of nothing") {
  Setting s = setting_of(128, 22, 0.84, false);
  std::mt19937 random(5);
  KeyModel model(s, random);
  const KeyTableLayout small = layout_of(model, 100 * 1024);
  CHECK(small.stage_slices > 1, small.stage_slices);
  CHECK(plane_shared_bytes(small) <= 100 * 1024, plane_shared_bytes(small));
  KeyTableLayout none = small;
  CHECK(plan_plane_tables(model, 4096, &none) == cudaErrorInvalidValue, "4 KB of shared memory");
  std::fill(model.memory.begin(), model.memory.end(), uint16_t{0});
  const KeyTableLayout zero = layout_of(model, kMostShared);
  const PackedTables packed(model, zero);
  int planes;
  double size;
  CHECK(packed.entry(1, 3, 5, 17, 1, &planes, &size) == 0.0, "zeros stay zeros");
  // A pair that is the same in all entries.
  for (size_t i = 0; i < model.memory.size(); ++i) model.memory[i] = i % 16 == 2 ? 0x4900 : 0x3c00 + i / 16 % 64;
  const KeyTableLayout same = layout_of(model, kMostShared);
  const double value = PackedTables(model, same).entry(0, 2, 9, 2, 0, &planes, &size);
  CHECK(std::fabs(value - 10.0) < 0.01, value);
}

DEVICE_CASE("CommVQ planes: attention on whole numbers of steps") {
  for (const int head_dim : {64, 96, 128, 256}) {
    for (const int stages : {3, 11, 21}) {
      Setting s = whole_of(head_dim, stages);
      s.kv_heads = 3;
      s.lengths = {{2, 4, 9}, {0, 9, 0}};
      Batch batch(s);
      const std::vector<float> got = batch.attend();
      const double error = reference::nmse(got.data(), batch.expected());
      const KeyTableLayout& tables = batch.plan().shape.tables;
      std::printf("     %s: %d planes in %d slices, nmse %.1e\n", s.describe().c_str(), tables.planes, tables.slices(),
                  error);
      CHECK(tables.planes == stages + 1, s.describe());
      CHECK(error <= kWholeNmse, s.describe() << ": " << error);
    }
  }
}

DEVICE_CASE("CommVQ planes: attention, whatever the sizes of stages") {
  for (const int head_dim : {64, 96, 112, 128, 256}) {
    for (const int stages : {11, 22}) {
      for (const double fall : {1.0, 0.84, 0.6}) {
        for (const bool uniform : {false, true}) {
          for (const double mean : {0.0, 3.0}) {
            if (mean > 0.0 && (uniform || fall == 1.0)) continue;
            Setting s = setting_of(head_dim, stages, fall, uniform, mean);
            s.lengths = {{2, 4, 9}, {0, 9, 0}};
            Batch batch(s);
            const std::vector<float> got = batch.attend();
            const double error = reference::nmse(got.data(), batch.expected());
            const KeyTableLayout& tables = batch.plan().shape.tables;
            std::printf("     %s: %d planes and %d low ones in %d slices, nmse %.1e\n", s.describe().c_str(),
                        tables.planes, tables.low_planes, tables.slices(), error);
            CHECK(error <= kFastNmse, s.describe() << ": " << error);
          }
        }
      }
    }
  }
}

// Keys that are larger: scores of a variance of about 4, where what tables lose comes close to what is promised.
DEVICE_CASE("CommVQ planes: sharp scores") {
  for (const int stages : {11, 22}) {
    for (const double fall : {1.0, 0.84}) {
      for (const unsigned seed : {1u, 2u, 3u}) {
        Setting s = setting_of(128, stages, fall, seed == 2);
        s.seed = seed;
        s.magnitude = std::sqrt(2.0);
        s.lengths = {{2, 9, 9}, {0, 20, 0}};
        Batch batch(s);
        const std::vector<float> got = batch.attend();
        const double error = reference::nmse(got.data(), batch.expected());
        std::printf("     %s: %d planes, nmse %.1e\n", s.describe().c_str(), batch.plan().shape.tables.planes, error);
        CHECK(error <= kFastNmse, s.describe() << ": " << error);
      }
    }
  }
}

DEVICE_CASE("CommVQ planes: groups of query heads, a long batch, twice the same bits") {
  for (const int group : {1, 3, 4, 7}) {
    Setting s = setting_of(128, 11, 0.84, false);
    s.kv_heads = group == 4 ? 8 : 3;
    s.group = group;
    s.lengths = {{4, 40, 100}, {0, 1, 0}, {0, 0, 3}, {0, 33, 0, 99}};
    Batch batch(s);
    const std::vector<float> first = batch.attend(), second = batch.attend();
    CHECK(std::memcmp(first.data(), second.data(), 4 * first.size()) == 0, "equal input gives equal bits");
    const double error = reference::nmse(first.data(), batch.expected());
    std::printf("     %s: nmse %.1e\n", s.describe().c_str(), error);
    CHECK(error <= kFastNmse, s.describe() << ": " << error);
    CHECK(batch.workspace_is_clear(), s.describe());
  }
}

}  // namespace
