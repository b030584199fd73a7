// A random batch of CommVQ's pages: on the device as attention reads them, on the host in double by docs/format.md.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <random>
#include <vector>

#include "check.h"
#include "kernels/cuda/commvq/attend.h"

namespace commvq_case {

struct Length {
  int sinks = 0;
  int pages = 0;
  int window = 0;
  int hidden = 0;          // of the first page
  int window_begin = 0;    // first visible row of the window's storage
  int64_t page_token = 0;  // number of the first page's first token; sinks begin at 0
  std::vector<kvasir::cuda::TokenShift> shifts = {};
};

struct Setting {
  int kv_heads, group, head_dim;
  int stages, entries;
  int codes;
  kvasir::RopePairs pairs = kvasir::RopePairs::kHalves;
  kvasir::cuda::KeyPrecision precision = kvasir::cuda::KeyPrecision::kExact;
  std::vector<Length> lengths = {};
  kvasir::ElementType type = kvasir::ElementType::kFloat32;
  double magnitude = 1.0;
  unsigned seed = 1;
  double fall = 0.95;    // size of a stage's entries over that of the stage before
  bool uniform = false;  // entries are uniform, not normal, numbers
  double mean = 0.0;     // of the first stage's entries, in units of their spread
  bool whole = false;    // entries are whole numbers of steps, up to 127, and 127 * 64 in the first stage
  double gain = 1.0;     // size of the first page's gains
  double growth = 1.0;   // of gains from each distinct page to the next

  std::string describe() const;
};

// Codebooks with what device code asks of them, of random numbers: pairs of very different size, later stages smaller.
class KeyModel : public kvasir::commvq::KeyModel {
 public:
  KeyModel(const Setting& setting, std::mt19937& random);
  void encode(const float*, uint8_t*) const override {}
  void decode(const uint8_t*, float*) const override {}
  Codebook codebook() const override { return {memory.data(), static_cast<int64_t>(2 * memory.size())}; }
  void content(uint8_t (&)[32]) const override {}
  std::vector<uint16_t> memory;
};
class ValueModel : public kvasir::commvq::ValueModel {
 public:
  ValueModel(const Setting& setting, std::mt19937& random);
  void encode(const float*, uint8_t*) const override {}
  void decode(const uint8_t*, float*) const override {}
  Codebook codebook() const override { return {memory.data(), static_cast<int64_t>(2 * memory.size())}; }
  void content(uint8_t (&)[32]) const override {}
  std::vector<uint16_t> memory;
};

// One page: its canonical bytes and what they stand for.
struct Page {
  std::vector<uint8_t> bytes;
  std::vector<double> keys, values;  // [128][kv heads][head dim], keys before RoPE
};

class Scene {
 public:
  explicit Scene(const Setting& setting);
  Page make_page();

  const Setting setting;
  std::mt19937 random;
  KeyModel keys;
  ValueModel values;
  std::vector<double> frequencies;

 private:
  double gain_;  // of the next page
};

class Batch {
 public:
  explicit Batch(const Setting& setting);
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  // Runs on the device into poisoned memory and returns [sequences][query heads][head dim] as floats.
  // generic: with the kernels that run on any device, even where there are faster ones.
  std::vector<float> attend(bool generic = false);
  std::vector<double> expected() const;
  bool workspace_is_clear() const;
  const kvasir::cuda::CommVqPlan& plan() const { return plan_; }
  kvasir::cuda::CommVqRequest request() const;

 private:
  struct Sequence {
    std::vector<float> keys, values;  // visible rows after RoPE, [tokens][kv heads][head dim]
    kvasir::cuda::CommVqSequence device = {};
  };
  static constexpr int kDistinctPages = 6;
  Sequence build(const Length& length);
  // Rows that are not in pages; the first `hidden` of them are stored but not seen.
  kvasir::cuda::RowSpan add_rows(Sequence& sequence, const Length& length, int hidden, int count, int64_t token);
  void see(Sequence& sequence, const Length& length, const double* key, const double* value, int64_t token);
  void* upload(const void* bytes, size_t count);

  Scene scene_;
  const Setting& setting_;
  kvasir::cuda::CommVqPlan plan_ = {}, generic_plan_ = {};
  std::vector<Page> pages_;
  std::vector<const uint8_t*> device_pages_;
  std::vector<Sequence> sequences_;
  std::vector<float> queries_;  // as the device reads them
  std::vector<void*> memory_;
  kvasir::cuda::CommVqRequest request_ = {};
};

}  // namespace commvq_case
