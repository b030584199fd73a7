// Rows and codebooks to seal CommVQ's pages with: the parts that the host makes of them, and judges in double that know
// docs/format.md and what a search promises, but not how it searches.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "codecs/commvq/model.h"
#include "kvasir/commvq.h"
#include "reference/commvq.h"

namespace commvq_seal {

struct Setting {
  int kv_heads, head_dim;
  kvasir::RopePairs pairs;
  int stages, entries, refinements;
  int codes;
  int hidden;  // of the network; 0: none
  int flips;   // with a network
  int pages;
  bool equal = false;  // entries and rows of codebooks stand there twice: choices are ties, or next to

  int width() const { return kv_heads * head_dim; }
  std::string describe() const;
};

struct Deleter {
  void operator()(kvasir::KeyCodebook* object) const { kvasir::KeyCodebook::destroy(object); }
  void operator()(kvasir::ValueCodebook* object) const { kvasir::ValueCodebook::destroy(object); }
  void operator()(kvasir::ValueEncoder* object) const { kvasir::ValueEncoder::destroy(object); }
};

class Scene {
 public:
  explicit Scene(const Setting& setting);

  const Setting setting;
  std::vector<float> rows[2];  // by side: [tokens][kv_heads][head_dim], float16 numbers
  std::unique_ptr<kvasir::KeyCodebook, Deleter> key_codebook;
  std::unique_ptr<kvasir::ValueCodebook, Deleter> value_codebook;
  std::unique_ptr<kvasir::ValueEncoder, Deleter> encoder;  // null where there is none
  std::unique_ptr<kvasir::commvq::PageBook> models[2];

  int64_t tokens() const { return int64_t{128} * setting.pages; }
  const kvasir::commvq::KeyModel& keys() const { return static_cast<const kvasir::commvq::KeyModel&>(*models[0]); }
  const kvasir::commvq::ValueModel& values() const {
    return static_cast<const kvasir::commvq::ValueModel&>(*models[1]);
  }
  // The part of a page as the host's codec makes it.
  std::vector<uint8_t> host_part(int side, int page) const;

  // What a part of a page must not be; empty where it is right. Bits are judged where they are the network's alone, or
  // where descents had no limit.
  std::string judge_keys(int page, const std::vector<uint8_t>& part) const;
  std::string judge_values(int page, const std::vector<uint8_t>& part) const;
  // Squared error of all that a part stands for.
  double key_error(int page, const std::vector<uint8_t>& part) const;
  double value_error(int page, const std::vector<uint8_t>& part) const;

 private:
  void make_rows();
  void make_encoder();
  const float* row(int side, int page, int token) const;
  reference::ComplexRow normal_key(int page, int token, int head, double norm) const;
  std::string judge_network(const float* row, const std::vector<int>& bits) const;
  std::string judge_descent(const float* row, const std::vector<int>& bits, const std::vector<double>& sum) const;

  std::vector<float> key_tables_, value_table_;  // as the codebooks took them, float16 numbers
  reference::Encoder network_;
};

}  // namespace commvq_seal
