// A random batch for attention, on the host in double and on the device packed.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <random>
#include <utility>

#include "check.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/layout/labels.h"
#include "kernels/cuda/layout/pack.h"
#include "reference/page.h"

namespace attend_case {

// What a sequence looks like: tokens in sinks, pages and window, in this order.
struct Length {
  int sinks = 0;
  int pages = 0;
  int window = 0;
  int hidden = 0;        // of the first page
  int window_begin = 0;  // first visible row of the window's storage
};

// What numbers look like.
enum class Data {
  kPlain,     // normal
  kOutliers,  // a few channels far larger, channel offsets, token scales over four orders of magnitude
  kConstant,  // all elements of a channel of keys, of a token of values, are equal
  kPeaked,    // scores spread over a range of hundreds
};

// Side tables of every sequence, for pages with labels.
struct Patterns {
  int fixed = 0;
  int first_page = 1 << 30;  // this page and later ones add a vector; may be negative
  bool keys = true;          // else labels of that side are 0, and it has no table
  bool values = true;
  int room = 0;  // vectors that VectorRoom has place for
};

// One kind of page, of any head dim.
struct PageKind {
  int key_bits;
  int value_bits;
  bool token_keys = false;
  bool labels = false;
  int grid = -1;  // of both sides, as the codecs' option; -1: what they take by default

  reference::Options options() const { return grid < 0 ? reference::Options{} : reference::Options{{"grid", grid}}; }
  reference::PageShape shape(reference::Side side, int head_dim) const;
  kvasir::cuda::HeadLayout layout(int head_dim) const;
};

struct Setting {
  kvasir::cuda::AttendShape shape;
  std::vector<PageKind> formats;  // pages take them in turn
  std::vector<Length> lengths;
  Data data = Data::kPlain;
  kvasir::ElementType type = kvasir::ElementType::kFloat32;
  unsigned seed = 1;
  bool listed = false;  // the addresses of sequences are listed in device memory, however few
  Patterns patterns = {};
  int blocks = 0;  // fewer than the plan has, so that each has more to do
};

class Batch {
 public:
  explicit Batch(const Setting& setting);
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  // Runs on the device into poisoned memory and returns [sequences][query heads][head dim] as floats.
  std::vector<float> attend();
  // The same in double over the decoded pages; zeros for sequences without tokens.
  std::vector<double> expected() const;

  const kvasir::cuda::AttendPlan& plan() const { return plan_; }
  kvasir::cuda::AttendRequest request() const;
  bool workspace_is_clear() const;

 private:
  struct Sequence {
    std::vector<float> keys, values;  // visible rows, [tokens][kv heads][head dim]
    kvasir::cuda::DeviceSequence device = {};
  };
  struct Page {
    std::vector<float> keys, values;  // decoded, [128][kv heads][head dim]
    std::vector<uint8_t> bytes;       // head blocks, without labels
    uint64_t reference;
  };
  struct Table {
    std::vector<float> vectors;  // [kv heads][count][head dim]
    int count = 0;
    kvasir::cuda::VectorTable device = {};
  };
  static constexpr int kDistinctPages = 12;
  Sequence build(const Length& length);
  void make_rows(std::vector<float>& keys, std::vector<float>& values, int tokens);
  // One of kDistinctPages of a format; long sequences repeat them, because encoding takes most of a test's time.
  const Page& page(int format, int index);
  kvasir::cuda::RowSpan upload_rows(const std::vector<float>& keys, const std::vector<float>& values, int begin,
                                    int end);
  void* upload(const void* bytes, size_t count);
  Table make_table(bool keys, int pages);
  // A page of a format with labels: page(format, index) with random labels.
  Page labelled_page(int format, int index, const Table& keys, const Table& values);

  const Setting setting_;
  std::vector<kvasir::cuda::HeadLayout> layouts_;  // of the setting's formats
  kvasir::cuda::AttendPlan plan_ = {};
  std::mt19937 random_;
  std::map<std::pair<int, int>, Page> pages_;
  std::vector<Sequence> sequences_;
  std::vector<float> queries_;  // as the device reads them
  std::vector<void*> memory_;
  std::vector<const kvasir::cuda::DeviceSequence*> addresses_;
  const kvasir::cuda::DeviceSequence** device_addresses_ = nullptr;
  void* device_queries_ = nullptr;
  void* device_outputs_ = nullptr;
  void* workspace_ = nullptr;
  void* pattern_room_ = nullptr;
};

double nmse(const std::vector<float>& got, const std::vector<double>& expected);

}  // namespace attend_case
